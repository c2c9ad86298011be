"""The seed of a private run, which follows from all of its settings."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedtailor.protocol.plain import to_plain


def private_seed(seed: int, what: Mapping[str, Any], data: str) -> int:
    """The seed of all that a private run draws: noise, batches, and who reports.

    Two releases with the same noise differ by what it was to hide, and noise of two
    strengths is found from both. So a private run draws from a seed that holds all that
    its releases depend on. Runs that differ in anything draw independently, and their
    privacy losses add up; equal runs draw, and release, the same.

    Args:
        seed: the run's seed.
        what: the settings, by name: dataclasses, sequences and plain values.
        data: a digest of the clients' examples.

    Returns:
        A seed of 64 bits.
    """
    content = {name: to_plain(value, closures=True) for name, value in what.items()}
    text = json.dumps([seed, data, content], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
