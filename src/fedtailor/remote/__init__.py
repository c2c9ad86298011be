"""Federations of machines that keep their own data.

The coordinator trains as in a simulation, except that its executor sends requests to
clients on other machines. Each client has its own file of examples and its own states.
`serve` and `join` do what the commands do. What they need in addition to the dependencies of
fedtailor is imported only then; the extra `federation` installs it.

* `job`: what is trained, how a client's file becomes examples, what all agree on.
* `keys`: the files of each machine: kits, certificates, secrets.
* `wire`: requests and answers, their encoding and checks, and how they travel.
* `sums`: secure aggregation.
* `client`: what a client answers, under its own policy, and its account of it.
* `server`: training at the coordinator.
* `https`: the transport: the coordinator's port, and the clients' connection to it.
* `service`: the processes of both sides; `serving`: all that a coordinator does;
  `flower_app`: the same as a plain Flower app.
* `simulation`: a job with simulated clients; `demo`: a federation on one machine,
  compared with its simulation.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.remote.service import Handle as Handle
    from fedtailor.remote.service import join as join
    from fedtailor.remote.serving import serve as serve
    from fedtailor.remote.wire.run_log import RunLog as RunLog

_HOMES = {
    "RunLog": "fedtailor.remote.wire.run_log",
    "Handle": "fedtailor.remote.service",
    "join": "fedtailor.remote.service",
    "serve": "fedtailor.remote.serving",
}

__all__ = ["Handle", "RunLog", "join", "serve"]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
