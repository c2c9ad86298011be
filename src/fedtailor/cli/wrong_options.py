"""What is wrong with a command line that was refused, in words.

tyro refuses a command line as a whole, and prints why. Which option it is, and what it
may be, is found here from the annotations of the dataclasses, option by option.
"""

import difflib
import inspect
import io
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from pathlib import Path
from typing import Any

KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a word", "words"),
    Path: ("a path", "paths"),
    bool: ("True or False", "True or False"),
    type(None): ("None", "None"),
}
"""What one value is called, and several."""


@dataclass(frozen=True)
class Option:
    """An option of a command, or an argument by its place.

    Attributes:
        name: as people write it, without dashes before it; an option of a nested
            dataclass has its name as a prefix ("sgd.lr").
        field: of the dataclass that it is of.
        annotation: of the field.
        is_required: whether it has no default.
    """

    name: str
    field: str
    annotation: Any
    is_required: bool

    @property
    def is_positional(self) -> bool:
        import tyro

        return tyro.conf.Positional in _notes(self.annotation)

    @property
    def shown(self) -> str:
        """How messages name it."""
        if not self.is_positional:
            return f"--{self.name}"
        names = [getattr(note, "metavar", None) for note in _notes(self.annotation)]
        given = [name for name in names if name is not None]
        return given[0] if given else self.name.upper()

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of its values; a union has several."""
        return tuple(_members(self.annotation))

    @property
    def switches(self) -> tuple[str, ...]:
        """The two words of a switch, on and off; else none."""
        if self.kinds != (bool,):
            return ()
        place, dot, own = self.name.rpartition(".")
        return self.name, f"{place}{dot}no-{own}"

    @property
    def takes_any_number(self) -> bool:
        return any(typing.get_args(kind)[-1:] == (...,) for kind in self.kinds)

    @property
    def is_settable(self) -> bool:
        """Whether some values other than None can be written as text."""
        return any(
            kind in KINDS or typing.get_origin(kind) in (tuple, typing.Literal)
            for kind in self.kinds
            if kind is not type(None)
        )

    @property
    def choices(self) -> list[str] | None:
        """Its values, if they are few."""
        listed = []
        for kind in self.kinds:
            if typing.get_origin(kind) is typing.Literal:
                listed += map(str, typing.get_args(kind))
            elif kind is not type(None):
                return None
        return [*listed, *(["None"] if type(None) in self.kinds else [])]


def options_of(
    target: Callable[..., Any], prefix: str = "", *, has_values: bool = False
) -> Iterator[Option]:
    """The options of a dataclass, or of a function's dataclass parameters.

    Args:
        target: the dataclass or function.
        prefix: of all names.
        has_values: whether there is an instance, whose values are the defaults.
    """
    hints = typing.get_type_hints(
        target.__init__ if inspect.isclass(target) else target, include_extras=True
    )
    for parameter in inspect.signature(target).parameters.values():
        default, annotation = parameter.default, hints.get(parameter.name, Any)
        renamed = [getattr(note, "name", None) for note in _notes(annotation)]
        name = next((name for name in renamed if name), parameter.name)
        # Of a part that may be left out, tyro makes `personal-sgd:sgd --personal-sgd.lr`.
        parts: list[Any] = [it for it in _members(annotation) if is_dataclass(it)]
        if is_dataclass(default):
            inner = f"{prefix}{name}." if inspect.isclass(target) else prefix
            yield from options_of(type(default), inner, has_values=True)
        elif parts:
            yield from options_of(parts[0], f"{prefix}{name}.", has_values=True)
        else:
            yield Option(
                f"{prefix}{name}".replace("_", "-"),
                parameter.name,
                annotation,
                default is parameter.empty and not has_values,
            )


def unknown_option(target: Callable[..., Any], arguments: list[str]) -> str | None:
    """The message about the first option that does not exist; None if all do.

    It has the options that end in its name, or those with a similar spelling.
    """
    options = [option for option in options_of(target) if not option.is_positional]
    names = [option.name for option in options]
    switches = [word for option in options for word in option.switches]
    for argument in arguments:
        typed, equals, value = argument.partition("=")
        name = typed.removeprefix("--").replace("_", "-")
        if not typed.startswith("--"):
            continue
        if name in switches:
            if equals:
                return f"{typed} is a switch; leave out ={value}"
            continue
        if name in names:
            continue
        similar = [known for known in names if known.rpartition(".")[2] == name]
        similar = similar or difflib.get_close_matches(name, names, n=2, cutoff=0.5)
        if not similar:
            return f"unknown option {typed}"
        return f"unknown option {typed}; perhaps --{' or --'.join(similar)}"
    return None


def what_is_wrong(
    target: Callable[..., Any], arguments: list[str], refusal: BaseException
) -> str:
    """Say what of a command line was refused.

    Args:
        target: a dataclass, or a function of dataclasses.
        arguments: the command line, whose options all exist.
        refusal: what tyro raised.
    """
    options = {option.name: option for option in options_of(target)}
    typed, free = _values(arguments, options)
    for name, values in typed.items():
        wrong = _wrong_value(options[name], values)
        if wrong is not None:
            return wrong
    missing = []
    for option in options.values():
        if not option.is_positional:
            is_missing = option.is_required and option.name not in typed
        elif option.takes_any_number:
            free, is_missing = [], False
        else:
            is_missing = option.is_required and not free
            free = free[1:]
        missing += [option.shown] if is_missing else []
    if missing:
        return f"missing: {', '.join(missing)}"
    # A dataclass has refused its values.
    cause = refusal.__context__
    while cause is not None and not isinstance(cause, ValueError):
        cause = cause.__context__
    return str(cause or "the options are wrong")


def _values(
    arguments: list[str], options: dict[str, Option]
) -> tuple[dict[str, list[str]], list[str]]:
    """The values of each option as typed, and the arguments that belong to none."""
    typed: dict[str, list[str]] = {}
    free: list[str] = []
    current, most = free, 0
    for argument in arguments:
        text, equals, value = argument.partition("=")
        name = text.removeprefix("--").replace("_", "-")
        if not text.startswith("--"):
            (current if len(current) < most else free).append(argument)
            continue
        option = options.get(name)
        current, most = [], 0
        if option is not None and not option.switches:
            typed[name] = current
            most = len(arguments) if option.takes_any_number else 1
        if equals:
            current.append(value)
    return typed, free


def _wrong_value(option: Option, values: list[str]) -> str | None:
    """What is wrong with the values of an option; None if nothing is."""
    if not values:
        is_empty = not option.takes_any_number
        return f"{option.shown} needs a value" if is_empty else None
    shown = " ".join(map(repr, values))
    if not option.is_settable:
        return f"{option.shown} is {shown}; it can be set in Python only"
    if _is_taken(option, values):
        return None
    if option.choices is not None:
        # A decimal sign is read as one in quotes only.
        choices = ", ".join(
            word if word[:1].isalnum() else repr(word) for word in option.choices
        )
        return f"{option.shown} is {shown}; it must be one of {choices}"
    return f"{option.shown} is {shown}; it must be {_expected(option.kinds)}"


def _is_taken(option: Option, values: list[str]) -> bool:
    """Whether tyro takes these values of an option that stands alone."""
    import tyro

    alone = make_dataclass("Alone", [(option.field, option.annotation, field())])
    own_name = option.name.rpartition(".")[2]
    try:
        with redirect_stderr(io.StringIO()):
            tyro.cli(alone, args=[f"--{own_name}", *values], console_outputs=False)
    except SystemExit:
        return False
    return True


def _expected(kinds: tuple[Any, ...]) -> str:
    """What a value must be, in words."""
    words = []
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            (inner, *_) = (*_members(typing.get_args(kind)[0]),)
            words.append(KINDS[inner][1] if inner in KINDS else str(inner))
        elif typing.get_origin(kind) is typing.Literal:
            words += map(str, typing.get_args(kind))
        elif kind in KINDS:
            words.append(KINDS[kind][0])
    return " or ".join(words)


def _notes(annotation: Any) -> tuple[Any, ...]:
    """What an annotation says besides the type."""
    return getattr(annotation, "__metadata__", ())


def _members(annotation: Any) -> Iterator[Any]:
    """The types in an annotation; a union has several."""
    if hasattr(annotation, "__metadata__"):
        yield from _members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for inner in typing.get_args(annotation):
            yield from _members(inner)
    else:
        yield annotation
