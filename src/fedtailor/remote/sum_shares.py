"""How much of a client's vector the sums that a server has had can show.

A server that has s weighted sums of vectors, with weights W [s, c], has all combinations
of them, too. In the combination a, client i has the weight |a . w_i|, where w_i is its
column of W. Its share is

    max over a of  |a . w_i| / sum_j |a . w_j|

1 if a combination is its vector alone, and 1 / c if it is one among c equals in all. With
one sum it is |w_i| / sum_j |w_j|. It depends on the row space of W only.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._files import atomic_write
from fedtailor.protocol import require

TOLERANCE = 1e-7
"""Two rows of weights that differ by less are the same row. Their difference is that of
two sums, which are rounded more coarsely.
"""


def largest_shares(weights: Float[np.ndarray, "s c"]) -> Float[np.ndarray, " c"]:
    """The largest share [c] of each client in any combination of sums.

    Args:
        weights: weight of each client in each sum.

    Returns:
        Shares from 0 (no weight in any sum) to 1.
    """
    basis = _basis(weights)
    rank, clients = basis.shape
    if rank == 0:
        return np.zeros(clients)
    if rank == 1:
        return np.abs(basis[0]) / np.abs(basis[0]).sum()
    if rank == 2:
        # The shares of a convex problem in one dimension are largest where some other
        # client has no weight: at a combination that is orthogonal to its column.
        combinations = np.stack([-basis[1], basis[0]], axis=1)
        sizes = np.abs(combinations @ basis)  # [combinations, clients]
        total = sizes.sum(axis=1, keepdims=True)
        found = np.divide(
            sizes, total, out=np.zeros_like(sizes), where=total > TOLERANCE
        )
        return found.max(axis=0)
    return np.array([_share_by_program(basis, client) for client in range(clients)])


def _share_by_program(basis: Float[np.ndarray, "r c"], client: int) -> float:
    """The largest share of a client, by a linear program.

    Its weight is set to 1; then the others' weights t_j >= |a . w_j| are minimised, and
    the share is 1 / (1 + sum of t).
    """
    # Imported here, as it takes half a second.
    from scipy.optimize import linprog

    own, others = basis[:, client], np.delete(basis, client, axis=1).T
    if np.linalg.norm(own) <= TOLERANCE:
        return 0.0
    rank, count = len(own), len(others)
    slack = -np.eye(count)
    solved = linprog(
        c=np.r_[np.zeros(rank), np.ones(count)],
        A_ub=np.block([[others, slack], [-others, slack]]),
        b_ub=np.zeros(2 * count),
        A_eq=np.r_[own, np.zeros(count)][None],
        b_eq=[1.0],
        bounds=[(None, None)] * rank + [(0, None)] * count,
    )
    # What cannot be computed is not promised.
    return 1 / (1 + max(float(solved.fun), 0.0)) if solved.success else 1.0


def _basis(weights: Float[np.ndarray, "s c"]) -> Float[np.ndarray, "r c"]:
    """Orthonormal rows that span the rows of weights."""
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    rows = (weights / np.where(lengths > 0, lengths, 1))[lengths[:, 0] > 0]
    if not len(rows):
        return np.zeros((0, weights.shape[1]))
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    return directions[sizes > TOLERANCE]


@dataclass
class ReleasedSums:
    """The sums of one kind of vector that a server has had, by their weights.

    Attributes:
        names: names of the clients, in the order of the columns.
        basis: orthonormal rows that span the weights of all sums.
    """

    names: tuple[str, ...] = ()
    basis: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def with_sums(
        self, names: Sequence[str], weights: Float[np.ndarray, "s c"]
    ) -> "ReleasedSums":
        """These sums and further ones.

        Args:
            names: names of the clients of the further sums.
            weights: weight of each client in each of them.

        Returns:
            This object itself, if the further sums are combinations of these.
        """
        together = tuple(sorted({*self.names, *names}))
        rows = np.zeros((len(self.basis) + len(weights), len(together)))
        rows[: len(self.basis), [together.index(name) for name in self.names]] = (
            self.basis
        )
        rows[len(self.basis) :, [together.index(name) for name in names]] = weights
        basis = _basis(rows)
        is_new = len(basis) > len(self.basis) or not self.names
        return ReleasedSums(together, basis) if is_new else self

    def largest_share(self) -> tuple[float, str]:
        """The largest share of a client in any combination, and the client's name."""
        shares = largest_shares(self.basis)
        if not len(shares):
            return 0.0, ""
        client = int(shares.argmax())
        return float(shares[client]), self.names[client]


class SumHistory:
    """The sums that a server may combine, by the vectors that they add.

    Args:
        scope: "run" for the sums of all rounds, "round" for those of one round, in all
            attempts of it.
        path: file in which the history is kept; None = it is not kept.

    Raises:
        ValueError: the file cannot be read.
    """

    def __init__(self, scope: str, path: Path | None = None) -> None:
        self._scope, self._path = scope, path
        self._round = -1
        self._released: dict[str, ReleasedSums] = {}
        if path is not None and path.exists():
            try:
                content = json.loads(path.read_text("utf-8"))
                self._round = int(content["round"])
                for key, sums in content["sums"].items():
                    names = tuple(map(str, sums["names"]))
                    basis = np.array(sums["basis"], float).reshape(-1, len(names))
                    require(bool(np.isfinite(basis).all()), "a weight is not finite")
                    self._released[key] = ReleasedSums(names, basis)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"cannot read {path}: {error}; it says which sums this client has a"
                    " part in, so restore it, or take part in a new job"
                ) from None

    def released(self, round: int, vector: Any) -> ReleasedSums:
        """The sums of a vector that may be combined with those of a round.

        Args:
            round: the round.
            vector: names the vectors that are added, as plain values.
        """
        if self._scope == "round" and round != self._round:
            return ReleasedSums()
        return self._released.get(json.dumps(vector), ReleasedSums())

    def record(self, round: int, vector: Any, sums: ReleasedSums) -> None:
        """Replace the sums of a vector, for `released` in this round and later ones."""
        if sums is self.released(round, vector):
            return
        if self._scope == "round" and round != self._round:
            self._released = {}
        self._round = round
        self._released[json.dumps(vector)] = sums
        if self._path is not None:
            stored = {
                key: {"names": sums.names, "basis": sums.basis.tolist()}
                for key, sums in self._released.items()
            }
            with atomic_write(self._path) as temporary:
                text = json.dumps({"round": self._round, "sums": stored})
                temporary.write_text(text, "utf-8")
