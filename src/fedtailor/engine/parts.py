"""An exchange with so many clients that their states do not fit into memory: part by part."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.engine.mapper import Outputs
from fedtailor.protocol import Cohort, Down


def part(cohort: Cohort, down: Down, rows: NDArray[np.int64]) -> tuple[Cohort, Down]:
    """Some of the clients of a cohort, and what is sent to them."""

    def theirs(values: Any) -> Any:
        return values if np.ndim(values) == 0 else np.asarray(values)[rows]

    fields = ("index", "ids", "sizes", "groups", "report")
    some = {name: None if (values := getattr(cohort, name)) is None else values[rows] for name in fields}
    sent = {kind: replace(sent, to=sent.to[rows]) for kind, sent in down.sent.items()}
    note = {name: theirs(value) for name, value in down.note.items()}
    return replace(cohort, **some), Down(sent, note, theirs(down.reply))


def joined(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of all parts, one below the other, without padding.

    Raises:
        Diverged: an output is NaN or infinite.
    """
    parts = [out.checked() for out in parts]
    if len(parts) == 1:
        return parts[0]
    ends = [len(out.report) for out in parts]

    def together(*leaves: Any) -> NDArray[Any]:
        return np.concatenate([np.asarray(leaf)[:end] for leaf, end in zip(leaves, ends, strict=True)])

    values, done = jax.tree.map(together, *((out.values, out.done) for out in parts))
    return Outputs(values, np.concatenate([out.report for out in parts]), done, parts[0].blame)
