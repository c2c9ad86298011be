"""Old names of a module, which work for one more release."""

import sys
import warnings
from collections.abc import Callable
from typing import Any


def old_names(module: str, **names: str) -> Callable[[str], Any]:
    """Make a module's `__getattr__`, by which old names are found: `old="new"`.

    Using an old name gives a `DeprecationWarning`.
    """

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(
            f"{module}.{name} is now {module}.{new}; {name} goes with 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], new)

    return getattribute
