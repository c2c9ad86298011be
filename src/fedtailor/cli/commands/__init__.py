"""The commands: `fedtailor NAME` is the function NAME of the module NAME here, and that
file is all it takes.

The first line of a module's docstring is its line in `fedtailor --help`, from the colon
on.
"""
