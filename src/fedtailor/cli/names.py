"""The command lines of lists: `[NAME] [--json]`."""

from fedtailor.protocol import require


def names_and_json(arguments: list[str], usage: str) -> tuple[str | None, bool]:
    """The name, if there is one, and whether JSON is wanted; --help prints `usage` and
    exits.

    Raises:
        ValueError: an unknown option, or several names.
        SystemExit: help was asked for.
    """
    if "-h" in arguments or "--help" in arguments:
        print(usage)
        raise SystemExit(0)
    unknown = [
        argument
        for argument in arguments
        if argument.startswith("-") and argument != "--json"
    ]
    require(not unknown, f"unknown option {''.join(unknown[:1])}; {usage}")
    names = [argument for argument in arguments if not argument.startswith("-")]
    require(len(names) <= 1, usage)
    return (names[0] if names else None), "--json" in arguments
