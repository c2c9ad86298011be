"""What can be wrong with a directory, as opposed to with what is trained in it."""


class Unusable(ValueError):
    """A directory or a file in it cannot be used: it is in use, holds something else,
    is damaged, or cannot be written.

    A comparison ends with it, where any other `ValueError` of a run only means that the
    method refuses its settings.
    """


class Damaged(Unusable):
    """A file does not hold what was written to it, or is not there any more."""
