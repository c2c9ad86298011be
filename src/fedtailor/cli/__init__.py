"""The command line: `fedtailor COMMAND`.

The commands are the modules of `fedtailor.cli.commands`.
"""

from fedtailor.cli.main import main

__all__ = ["main"]
