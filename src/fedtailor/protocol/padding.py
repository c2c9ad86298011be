"""Padded sizes of arrays, so that arrays of similar sizes share compiled programs."""


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is `n` or more; 1 for all `n` up to 1."""
    return 1 << max(int(n) - 1, 0).bit_length()
