"""Old spellings of arguments, which work for one more release."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[Made], Made]:
    """Decorator of a function or class whose arguments `old="new"` have been renamed.

    The old spelling warns once where it stands; both spellings at once are refused.
    """

    def decorate(made: Any) -> Any:
        if not isinstance(made, type):
            return _translating(made, made.__name__, names)
        setattr(made, "__init__", _translating(made.__init__, made.__name__, names))  # noqa: B010 (of a known class)
        return made

    return decorate


def _translating(
    function: Callable[..., Any], title: str, names: dict[str, str]
) -> Callable[..., Any]:
    """A function that takes old names of arguments, too.

    To whoever inspects it, it has the new ones only.
    """

    @functools.wraps(function)
    def translated(*args: Any, **options: Any) -> Any:
        for old in names.keys() & options.keys():
            new = names[old]
            if new in options:
                raise ValueError(f"{title} takes {new}, once {old}; give one of them")
            warnings.warn(
                f"{title}: {old} is now {new}; {old} goes with 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            options[new] = options.pop(old)
        return function(*args, **options)

    translated.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return translated
