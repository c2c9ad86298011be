"""Errors of directories and files, as opposed to errors of training."""


class Unusable(ValueError):
    """A directory or a file cannot be used.

    It is in use, has other content, is damaged, or cannot be written. This error stops
    a comparison. Any other `ValueError` of a run means that the method refuses its
    settings, and the comparison goes on with the next run.

    Example:
        >>> from fedtailor.engine.storage import Unusable
        >>> issubclass(Unusable, ValueError)
        True
    """


class Damaged(Unusable):
    """A file is missing, or its content is not what was written.

    Example:
        >>> from fedtailor.engine.storage import Damaged
        >>> issubclass(Damaged, ValueError)
        True
    """


class InUse(Unusable):
    """Another process writes to a directory.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.storage import DirectoryLock, InUse
        >>> with DirectoryLock(Path(".")):
        ...     try:
        ...         DirectoryLock(Path(".")).acquire()
        ...     except InUse:
        ...         print("in use")
        in use
    """
