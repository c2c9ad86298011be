"""Deprecated argument names, which are accepted for one more release."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """Decorator of a function or class whose arguments `old="new"` have been renamed.

    Using an old name gives a `DeprecationWarning`; using both names is an error.
    """

    def decorate(function: Any) -> Any:
        if not isinstance(function, type):
            return _accept_old_names(function, function.__name__, names)
        init = _accept_old_names(function.__init__, function.__name__, names)
        setattr(function, "__init__", init)  # noqa: B010 (type checkers refuse an assignment)
        return function

    return decorate


def _accept_old_names(
    function: Callable[..., Any], title: str, names: dict[str, str]
) -> Callable[..., Any]:
    """Wrap a function so that it accepts old argument names.

    The signature of the wrapper has only the new names.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for old in names.keys() & kwargs.keys():
            new = names[old]
            if new in kwargs:
                raise ValueError(f"{title} takes {new}, once {old}; give one of them")
            warnings.warn(
                f"{title}: {old} is now {new}; {old} goes with 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            kwargs[new] = kwargs.pop(old)
        return function(*args, **kwargs)

    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper
