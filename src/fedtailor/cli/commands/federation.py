"""`fedtailor federation init | serve | join | simulate`: train over machines that keep their own data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor.cli.options import parse
from fedtailor.protocol import require

USAGE = """usage: fedtailor federation COMMAND [options]

Train over machines that keep their own data (docs/federation.md).

  init DIR --clients a,b --address HOST:PORT   make a federation: its job, keys and certificates
  serve DIR                                    coordinate it
  join KIT --data FILE                         take part in it as a client
  simulate DIR --data FILE ...                 run the same job on this machine

`fedtailor federation COMMAND --help` says more."""

Positional = tyro.conf.Positional


@dataclass(frozen=True)
class Init:
    """Make a federation's directory, or add clients to one that is there. Nothing is overwritten."""

    dir: Positional[Path]
    """Directory of the federation."""
    clients: str
    """Names of the clients, separated by commas."""
    address: str | None = None
    """HOST:PORT where clients reach the coordinator (new federations)."""
    job: Path | None = None
    """A job file to copy; without it a template is written, to be edited (new federations)."""


@dataclass(frozen=True)
class Serve:
    """Coordinate a federation: start Flower's SuperLink with TLS, wait for the clients, train."""

    dir: Positional[Path]
    """Directory of the federation."""
    listen: str = "0.0.0.0"
    """Address to listen on; all of this machine's by default."""
    wait: float = 600.0
    """Seconds to wait for the clients."""
    check: bool = False
    """Only connect all clients, print who is there, and end."""


@dataclass(frozen=True)
class Join:
    """Take part in a federation as a client, until stopped with Ctrl-C."""

    kit: Positional[Path]
    """The kit that the coordinator made for this client, with the job file in it."""
    data: Path
    """The client's examples: .csv, .tsv or .parquet."""


@dataclass(frozen=True)
class Simulate:
    """Run a federation's job on this machine, with one file for each client."""

    dir: Positional[Path]
    """Directory of the federation."""
    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """The clients' files, in the order of their names."""


def federation(arguments: list[str]) -> int:
    """One of the commands for federations of machines."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    name, *rest = arguments
    require(name in COMMANDS, f"there is no command federation {name}; the commands are {', '.join(COMMANDS)}")
    options, run = COMMANDS[name]
    try:
        return run(parse(options, rest, f"fedtailor federation {name}"))
    except (RuntimeError, TimeoutError) as error:
        raise ValueError(str(error)) from error


def _init(options: Init) -> int:
    from fedtailor.remote.flower import require_flower
    from fedtailor.remote.kit import JOB, make_federation

    require_flower()
    names = [name.strip() for name in options.clients.split(",") if name.strip()]
    made = make_federation(options.dir, names, address=options.address, job=options.job)
    print(f"Made {options.dir} with kits for {', '.join(made)}.")
    print(f"1. Edit {options.dir / JOB}: columns, model, method, rounds.")
    print(
        f"2. Copy {options.dir / JOB} and one kit of {options.dir / 'kits'} to each client, over a channel you trust:"
    )
    print("   a kit holds the client's private key. Then remove the kits here.")
    print(f"3. Keep {options.dir / 'coordinator' / 'ca.key'} secret; it is needed only to make new certificates.")
    print(f"Start: fedtailor federation serve {options.dir}; at each client: fedtailor federation join KIT --data FILE")
    return 0


def _serve(options: Serve) -> int:
    from fedtailor.remote.service import connected, greet

    with connected(options.dir, host=options.listen) as connection:
        print(f"{connection.job.title}: waiting for {', '.join(connection.clients)} at {connection.job.address}")
        found = greet(connection, wait=options.wait)
        for name, reply in found.replies.items():
            print(f"{name}: {int(reply.arrays['rows'])} rows")
        print(f"{len(found.replies)} of {len(connection.clients)} clients are ready")
        require(options.check, "training over machines is not part of this version; check connections with --check")
    return 0


def _join(options: Join) -> int:
    from fedtailor.remote.flower import require_flower
    from fedtailor.remote.kit import read_kit
    from fedtailor.remote.service import join

    require_flower()
    join(read_kit(options.kit), options.data)
    return 0


def _simulate(options: Simulate) -> int:
    from fedtailor.remote.job import read_job
    from fedtailor.remote.kit import JOB
    from fedtailor.remote.table import read_rows

    job = read_job(options.dir / JOB)
    for path in options.data:
        print(f"{path}: {len(read_rows(path, job.schema).y)} rows fit the job")
    raise ValueError("simulating a job is not part of this version; compare methods with `fedtailor compare`")


COMMANDS: dict[str, tuple[type, Callable[..., int]]] = {
    "init": (Init, _init),
    "serve": (Serve, _serve),
    "join": (Join, _join),
    "simulate": (Simulate, _simulate),
}
