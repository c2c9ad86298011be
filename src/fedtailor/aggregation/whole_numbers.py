"""Whole numbers of several words of 32 bits, and their sums with all carries.

Masks hide words. Were each word added by itself, the sums would say how many carries there
were, and these depend on what single clients add: of 3 and 5 in words of two bits one is
carried, of 4 and 4 two are. With carries the sum of masked numbers modulo 2^(32 w) is the
sum of the numbers and of the masks.
"""

import numpy as np
from jaxtyping import Int64, UInt32, UInt64
from numpy.typing import NDArray

WORD_BITS = 32


def to_words(
    high: Int64[NDArray, " n"], low: UInt64[NDArray, " n"]
) -> UInt32[NDArray, "n 4"]:
    """Words of high 2^64 + low, the lowest first; those of fewer words are the first ones."""
    parts = [low, low >> np.uint64(WORD_BITS), high, high >> WORD_BITS]
    return np.stack([it.astype(np.uint32) for it in parts], axis=-1)


def from_words(words: UInt32[NDArray, "n words"]) -> list[int]:
    """The numbers, which are below 2^(32 words - 1) in size."""
    content = np.ascontiguousarray(words, "<u4").tobytes()
    size = 4 * words.shape[-1]
    return [
        int.from_bytes(content[start : start + size], "little", signed=True)
        for start in range(0, len(content), size)
    ]


def add_words(
    one: UInt32[NDArray, "..."], other: UInt32[NDArray, "..."], words: int
) -> UInt32[NDArray, "..."]:
    """The sum of numbers.

    Args:
        one, other: of the same shape, whose last axis has the words of one number after
            another.
        words: how many a number has.
    """
    if words == 1:
        return one + other
    pairs = [it.reshape(-1, words).astype(np.uint64) for it in (one, other)]
    total, carried = np.empty((len(pairs[0]), words), np.uint32), np.uint64(0)
    for word in range(words):
        found = pairs[0][:, word] + pairs[1][:, word] + carried
        total[:, word] = found.astype(np.uint32)
        carried = found >> np.uint64(WORD_BITS)
    return total.reshape(one.shape)


def negative_words(numbers: UInt32[NDArray, "..."], words: int) -> NDArray[np.uint32]:
    """The numbers that give 0 if they are added."""
    if words == 1:
        return np.negative(numbers)
    one = np.zeros((numbers.size // words, words), np.uint32)
    one[:, 0] = 1
    return add_words(np.invert(numbers), one.reshape(numbers.shape), words)
