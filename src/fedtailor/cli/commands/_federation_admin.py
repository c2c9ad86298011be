"""Commands of `fedtailor federation` for who keeps one running."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._base.printable import say

DirArgument = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
KitArgument = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="KIT")]


@dataclass(frozen=True)
class StatusOptions:
    """Say what a federation's coordinator is doing, or was doing when it ended."""

    dir: DirArgument
    """Directory of the federation."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class RenewOptions:
    """Renew the coordinator's certificate, or the keys of clients. A client's old key is
    not accepted any more, by a coordinator that is running either.
    """

    dir: DirArgument
    """Directory of the federation."""
    clients: str | None = None
    """Names of clients that get new keys, separated by commas; the certificate stays."""
    authority: bool = False
    """Renew the authority, too; all clients then need its new certificate."""


@dataclass(frozen=True)
class RevokeOptions:
    """Do not let a client in any more, without a restart of the coordinator. `renew` with
    its name lets it in again.
    """

    dir: DirArgument
    """Directory of the federation."""
    client: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CLIENT")]
    """Name of the client."""


def status(options: StatusOptions) -> int:
    """Prints the state of a coordinator."""
    from fedtailor.remote.keys.kit import COORDINATOR
    from fedtailor.remote.server.monitor import STATUS, read_status
    from fedtailor.remote.service import is_served

    coordinator = options.dir / COORDINATOR
    now = read_status(coordinator / STATUS)
    is_running = is_served(coordinator)
    if not is_running and now.state != "done":
        now.state = "stopped"
    if options.json:
        say(json.dumps(asdict(now) | {"running": is_running}))
        return 0
    say(f"{now.title}: {now.state}{'' if is_running else ', no coordinator runs'}")
    say(f"  rounds    {now.round} of {now.rounds}")
    if now.last_round:
        ago = max(0.0, time.time() - now.last_round)
        say(
            f"  last      {_moment(now.last_round)} ({ago:.0f} s ago), in {now.round_seconds:.1f} s;"
            f" {now.answered} of {now.asked} clients were used"
        )
    say(f"  clients   {now.registered} have a key, {now.online} were online")
    say(f"  warnings  {now.warnings} since {_moment(now.started)}")
    say(f"  certificates are valid for {now.certificate_days} days at least")
    return 0


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def renew(options: RenewOptions) -> int:
    """Renews a certificate or keys."""
    from fedtailor._base.choice import require
    from fedtailor.remote.keys.keys import require_packages
    from fedtailor.remote.keys.kit import PEM, renew_certificate, renew_keys

    require_packages()
    kits = options.dir / "kits"
    if options.clients is not None:
        require(not options.authority, "give either --clients or --authority, not both")
        names = names_of(options.clients)
        require(bool(names), "name the clients: --clients a,b")
        renew_keys(options.dir, names)
        for name in names:
            say(
                f"{name} needs {kits / name / PEM} to replace its old one,"
                " over a channel you trust; it keeps its state."
            )
        say("The old keys are not accepted any more. Then remove the kits here.")
        return 0
    renew_certificate(options.dir, authority=options.authority)
    if options.authority:
        certificate = options.dir / "coordinator" / "ca.crt"
        say(f"Every client needs {certificate} to replace its old one.")
    say("A coordinator that is running takes the new certificate within seconds.")
    return 0


def revoke(options: RevokeOptions) -> int:
    """Takes a client out."""
    from fedtailor.remote.keys.kit import revoke as revoke_client

    revoke_client(options.dir, options.client)
    say(
        f"{options.client} is not let in any more; what was trained with it stays, and"
        " `fedtailor federation renew --clients` lets it in again, with a new key."
    )
    return 0


def names_of(text: str) -> list[str]:
    """The names in a list that is separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
