"""What installed packages offer by name: methods, scenarios, metrics, trackers."""

from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedtailor.protocol.choice import check_choice
from fedtailor.protocol.hyperparameters import require

T = TypeVar("T")


def find_registered(
    registry: dict[str, T], name: str, what: str, group: str, *, base: type | None = None, listed_by: str | None = None
) -> T:
    """What is registered under a name; what an installed package offers under it is registered first.

    Args:
        registry: name -> what it names.
        name: what the user asked for.
        what: what it is, for messages: "metric".
        group: of entry points, such as "fedtailor.metrics".
        base: what a package's must be a subclass of, if it must be a class.
        listed_by: a command that lists the names, where they are too many for one line.

    Raises:
        ValueError: there is none of that name, or the package's is broken.
    """
    if name not in registry:
        kind = offered(group, name, what, base)
        if kind is not None:
            registry[name] = kind
    check_choice(name, sorted(registry), what, listed_by)
    return registry[name]


def offered(group: str, name: str, what: str, base: type | None = None) -> Any:
    """What an installed package offers under a name.

    Args:
        group: of entry points, such as "fedtailor.metrics".
        name: what the user asked for.
        what: what it is, for messages: "metric".
        base: what it must be a subclass of, if it must be a class.

    Returns:
        What the entry point names; None where no package offers the name.

    Raises:
        ValueError: it cannot be imported, or is something else.
    """
    for entry in entry_points(group=group, name=name):
        try:
            found = entry.load()
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ValueError(f"the {what} {name!r} of {entry.value} cannot be imported: {error}") from error
        fits = base is None or (isinstance(found, type) and issubclass(found, base))
        wanted = "" if base is None else base.__name__
        require(fits, f"the {what} {name!r} of {entry.value} is {found!r}; it must be a subclass of {wanted}")
        return found
    return None
