"""The command lines of lists: `[NAME] [--json]`."""

from fedtailor.protocol import require


def names_and_json(arguments: list[str], usage: str) -> tuple[str | None, bool]:
    """The name, if there is one, and whether JSON is wanted.

    Raises:
        ValueError: an unknown option, or several names.
        SystemExit: help was asked for; `usage` is printed.
    """
    if "-h" in arguments or "--help" in arguments:
        print(usage)
        raise SystemExit(0)
    names = [argument for argument in arguments if not argument.startswith("-")]
    for argument in arguments:
        is_known = argument in names or argument == "--json"
        require(is_known, f"unknown option {argument}; {usage}")
    require(len(names) <= 1, usage)
    return (names[0] if names else None), "--json" in arguments
