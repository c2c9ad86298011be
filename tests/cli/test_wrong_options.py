"""What is wrong with a command line is said of the option that is wrong."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro

import fedtailor
from fedtailor._base.choice import require
from fedtailor.cli.options import parse
from fedtailor.cli.wrong_options import what_is_wrong


@dataclass(frozen=True)
class Steps:
    """Steps of training."""

    lr: float = 0.1
    """How long they are."""
    count: int | Literal["auto"] | None = None
    """How many there are."""
    schedule: Callable[[int], float] | None = None
    """Only code can give one."""
    nesterov: bool = True
    """A switch of the steps."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")


@dataclass(frozen=True)
class Options:
    """Options of a test."""

    table: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """What is read."""
    client: str
    """Whose rows."""
    more: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """What is read after it."""
    steps: Steps = Steps()
    """The steps."""
    seeds: tuple[int, ...] | None = None
    """Several numbers."""
    kind: Literal["one", "two"] | None = None
    """One of two words."""
    quick: bool = False
    """A switch."""
    fine: Steps | None = None
    """Steps of one's own."""


RIGHT = ("t.csv", "--client", "north")


def options(*arguments):
    return parse(Options, list(arguments), "prog")


def test_right_options_become_values():
    given = ("--seeds", "1", "2", "--no-quick", "--steps.count=auto", "--steps.lr", "2")
    assert options(*RIGHT, *given, "--steps.no-nesterov") == Options(
        Path("t.csv"),
        "north",
        steps=Steps(2.0, "auto", nesterov=False),
        seeds=(1, 2),
    )
    fine = options(*RIGHT, "fine:steps", "--fine.lr", "3").fine
    assert fine == Steps(3.0)
    assert options("a", "b", "--client", "-5", "--seeds").seeds == ()
    assert options("a", "b", "c", "--client=x").more == (Path("b"), Path("c"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing: TABLE, --client"),
        (["--client", "north"], "missing: TABLE"),
        (["t.csv", "--quick"], "missing: --client"),
        (["t.csv", "--client"], "--client needs a value"),
        (["t.csv", "--client", "--quick"], "--client needs a value"),
        ([*RIGHT, "--seeds", "1", "x"], "--seeds is '1' 'x'; it must be whole numbers"),
        ([*RIGHT, "--kind", "three"], "--kind is 'three'; it must be one of one, two,"),
        ([*RIGHT, "--kind=three"], "--kind is 'three'; it must be one of one, two,"),
        ([*RIGHT, "--steps.lr", "long"], "--steps.lr is 'long'; it must be a number"),
        (
            [*RIGHT, "--steps.count", "few"],
            "--steps.count is 'few'; it must be a whole number or auto or None",
        ),
        ([*RIGHT, "--steps.lr", "-1"], "lr is -1.0; it must be above 0"),
        ([*RIGHT, "--steps.schedule", "f"], "unknown option --steps.schedule"),
        ([*RIGHT, "--lr", "1"], "unknown option --lr; perhaps --steps.lr"),
        ([*RIGHT, "--clients", "a"], "unknown option --clients; perhaps --client"),
        (["--sedes", "1"], "unknown option --sedes; perhaps --seeds"),
        (
            [*RIGHT, "fine:steps", "--fine.lr", "x"],
            "--fine.lr is 'x'; it must be a number",
        ),
        ([*RIGHT, "-q"], "unknown option -q"),
        ([*RIGHT, "--no-client"], "unknown option --no-client; perhaps --client"),
        ([*RIGHT, "--quick=yes"], "--quick is a switch; leave out =yes"),
        ([*RIGHT, "--steps.nesterov=no"], "--steps.nesterov is a switch"),
    ],
)
def test_the_message_names_the_option_that_is_wrong(arguments, message, capsys):
    with pytest.raises(ValueError) as refused:
        options(*arguments)
    text = str(refused.value)
    assert text.startswith(message) and "\n" not in text, text
    assert text.endswith("; `prog --help` lists the options")
    # tyro itself prints nothing.
    assert capsys.readouterr() == ("", "")


def test_options_of_a_function_have_the_defaults_of_its_instances():
    @dataclass(frozen=True)
    class Rounds:
        rounds: int

    def build(steps: Any, rounds: Any) -> Any:
        return steps, rounds

    flat = tyro.conf.arg(name="")
    build.__annotations__ = {
        "steps": Annotated[Steps, flat],
        "rounds": Annotated[Rounds, flat],
    }
    build.__defaults__ = (replace(Steps(), lr=3.0), Rounds(7))
    assert parse(build, [], "prog") == (Steps(3.0), Rounds(7))
    with pytest.raises(ValueError, match=r"^lr is 0.0; it must be above 0"):
        parse(build, ["--lr", "0"], "prog")
    with pytest.raises(
        ValueError, match=r"^--rounds is 'x'; it must be a whole number"
    ):
        parse(build, ["--rounds", "x"], "prog")


def test_a_refusal_that_nothing_explains_is_a_line_all_the_same():
    assert what_is_wrong(Options, list(RIGHT), SystemExit(2)) == "the options are wrong"


def test_only_public_names_of_tyro_are_used():
    root = Path(fedtailor.__file__).parent
    private = re.compile(r"tyro(\.\w+)*\._|from tyro(\.\w+)* import _")
    found = [path for path in root.rglob("*.py") if private.search(path.read_text())]
    assert found == []
