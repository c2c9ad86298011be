"""How much of a client's vector the sums that a server has had can show.

A server that has s weighted sums of vectors, with weights W [s, c], has all combinations
of them, too. In the combination a, client i has the weight |a . w_i|, where w_i is its
column of W. Its share is

    max over a of  |a . w_i| / sum_j |a . w_j|

1 if a combination is its vector alone, and 1 / c if it is one among c equals in all. With
one sum it is |w_i| / sum_j |w_j|. It depends on the row space of W only.

A share is of exact numbers. Each client rounds its part of each sum (`FixedPoint`), so the
parts of the others hide nothing where they are shorter than a step: in a sum with small
weights, or in the difference of two whose weights are nearly the same. `others_hide` says
whether they are long enough.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.digests import has_valid_digest, with_digest
from fedtailor._base.files import atomic_write

TOLERANCE = 2.0**-31
"""Smaller parts of combinations are not looked at for shares; `others_hide` does."""

SAME = 2.0**-46
"""Two rows of weights that differ by less are the same, but for rounding errors of float64.
A difference below a step is not enough: the others' parts are then the same whole numbers,
and how often one client's are not tells its numbers.
"""

LEAST_LENGTH = 2.0**-14
"""The least length of the others' weights in a combination of sums. Spread over 50 of them
each part of a number 1 is then 290 steps of `FixedPoint` with the range 64.
"""

MAX_PROGRAMS = 2**18
"""The most weights in all linear programs of one look at some sums: 16 programs of 90 sums
over 181 clients, or one for each client of 25 sums over 51, which take seconds.
"""


def largest_shares(
    weights: Float[np.ndarray, "s c"], least: float = 0.0
) -> Float[np.ndarray, " c"]:
    """The largest share [c] of each client in any combination of sums.

    With orthonormal rows the columns w of a combination of length 1 have
    |a . w_i| <= |w_i|, and their squares add up to 1, so that sum_j |a . w_j| is at
    least 1 / max_j |w_j|. So no share is above |w_i| max_j |w_j|. Nor is one above
    1 / (1 + v_i) with

        v_i = (1 - |w_i|^2) / max_{j != i} |w_j . w_i|,

    as u_j = v_i w_j . w_i / (1 - |w_i|^2) is one of `_share_by_program`'s choices. What is
    left are linear programs, whose numbers all together are `MAX_PROGRAMS` at most.

    Args:
        weights: weight of each client in each sum.
        least: shares that cannot be larger are not computed, and neither are others once
            one is larger, or there are too many of them; the bound stands for them.

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
    shares, left = _upper_bounds(basis), MAX_PROGRAMS
    for client in np.argsort(-shares, kind="stable"):
        left -= basis.size
        if shares[client] <= least or (least and left < 0):
            break
        shares[client] = _share_by_program(basis, int(client))
        if least and shares[client] > least:
            break
    return shares


def share_of(
    weights: Float[np.ndarray, "s c"], client: int, least: float = 0.0
) -> float:
    """The largest share of one client in any combination of sums.

    Args:
        weights: weight of each client in each sum.
        client: the column of the client.
        least: a share that is not above it may be given as larger, up to it.
    """
    basis = _basis(weights)
    if len(basis) <= 2:  # computed for all at once
        return float(largest_shares(weights)[client])
    bound = float(_upper_bounds(basis)[client])
    return bound if bound <= least else _share_by_program(basis, client)


def _upper_bounds(basis: Float[np.ndarray, "r c"]) -> Float[np.ndarray, " c"]:
    """Numbers above which no client's share is (see `largest_shares`)."""
    products = basis.T @ basis
    squares = products.diagonal().copy()
    lengths = np.sqrt(squares)
    np.fill_diagonal(products, 0)
    furthest = np.abs(products).max(axis=1)
    # rounding of products is far below this
    beyond = np.maximum(1 - squares - TOLERANCE, 0)
    shares = furthest / np.maximum(furthest + beyond, TOLERANCE)
    shares[beyond == 0] = 1.0
    return np.minimum(np.minimum(lengths * lengths.max(), 1.0), shares)


def _share_by_program(basis: Float[np.ndarray, "r c"], client: int) -> float:
    """The largest share of a client, by a linear program.

    With its weight set to 1, the others' sizes sum_j |a . w_j| have the least value v, and
    the share is 1 / (1 + v). By duality v is the largest number for which

        sum_j u_j w_j = v w_i,    |u_j| <= 1,

    a program of only as many equations as there are sums.
    """
    # Imported here, as it takes half a second.
    from scipy.optimize import linprog

    own, others = basis[:, client], np.delete(basis, client, axis=1)
    if np.linalg.norm(own) <= TOLERANCE:
        return 0.0
    count = others.shape[1]
    solved = linprog(
        c=np.r_[np.zeros(count), -1.0],
        A_eq=np.c_[others, -own],
        b_eq=np.zeros(len(own)),
        bounds=[(-1, 1)] * count + [(0, None)],
    )
    # What cannot be computed is not promised.
    return 1 / (1 + max(-float(solved.fun), 0.0)) if solved.success else 1.0


def _basis(weights: Float[np.ndarray, "s c"]) -> Float[np.ndarray, "r c"]:
    """Orthonormal rows that span the rows of weights."""
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    rows = (weights / np.where(lengths > 0, lengths, 1))[lengths[:, 0] > 0]
    if not len(rows):
        return np.zeros((0, weights.shape[1]))
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    return directions[sizes > TOLERANCE]


def _independent(weights: Float[np.ndarray, "s c"]) -> list[int]:
    """The indices of the rows of weights that are no combination of those before."""
    basis = np.zeros((0, weights.shape[1]))
    chosen = []
    for index, row in enumerate(weights):
        length = np.linalg.norm(row)
        if length == 0:
            continue
        rest = row / length
        for _ in range(2):  # once leaves what rounding adds
            rest = rest - rest @ basis.T @ basis
        apart = np.linalg.norm(rest)
        if apart > SAME:
            basis = np.vstack([basis, rest / apart])
            chosen.append(index)
    return chosen


def _are_repeated(weights: Float[np.ndarray, "s c"], independent: list[int]) -> bool:
    """Whether each row of weights that is a combination of others is one of them.

    Args:
        weights: the rows.
        independent: the indices of those that are no combinations.
    """
    totals = np.abs(weights).sum(axis=1, keepdims=True)
    rows = weights / np.where(totals > 0, totals, 1)
    chosen = rows[independent]
    return all(
        bool((np.abs(chosen - row).max(axis=1) <= SAME).any())
        for row in rows[totals[:, 0] > 0]
    )


def others_hide(weights: Float[np.ndarray, "s c"]) -> Bool[np.ndarray, " c"]:
    """For each client [c] whether the others hide its rounded part in every combination.

    They do if their length, min over a of |(a . w_j) for j != i| / |a|, is `LEAST_LENGTH`
    or more. It is the smallest singular value of the weights without the column of client
    i; rows that are combinations of others are left out first, as the same numbers are
    added in them. With G = W W', no squared singular value is below t if G - w_i w_i' - t I
    has no negative eigenvalue: if G - t I has none, and w_i' (G - t I)^-1 w_i <= 1.

    Args:
        weights: weight of each client in each sum.
    """
    rows, least = weights[_independent(weights)], LEAST_LENGTH**2
    sizes, directions = np.linalg.eigh(rows @ rows.T)
    if sizes.min(initial=np.inf) <= least:
        return np.zeros(weights.shape[1], bool)
    parts = (directions.T @ rows) ** 2 / (sizes - least)[:, np.newaxis]
    return parts.sum(axis=0) <= 1


@dataclass
class ReleasedSums:
    """The sums of one kind of vector that a server has had, by their weights.

    Attributes:
        names: names of the clients, in the order of the columns.
        weights: [r, c] weights of the sums, without those that are combinations of others.
        are_repeated: whether those are the same as one of them. Each client's part is
            rounded once more in any other: many of them show the digits of each.
    """

    names: tuple[str, ...] = ()
    weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    are_repeated: bool = True

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
        before = len(self.weights)
        rows = np.zeros((before + len(weights), len(together)))
        place = {name: column for column, name in enumerate(together)}
        rows[:before, [place[name] for name in self.names]] = self.weights
        rows[before:, [place[name] for name in names]] = weights
        chosen = _independent(rows)
        are_repeated = _are_repeated(rows, chosen)
        is_new = len(chosen) > before or not self.names or not are_repeated
        return ReleasedSums(together, rows[chosen], are_repeated) if is_new else self

    def shows_the_same_as(self, other: "ReleasedSums") -> bool:
        """Whether other sums have the same combinations."""
        if (self.names, len(self.weights)) != (other.names, len(other.weights)):
            return False
        basis, others = _basis(self.weights), _basis(other.weights)
        apart = basis - basis @ others.T @ others
        return bool(np.abs(apart).max(initial=0.0) <= TOLERANCE)

    def largest_share(self, least: float = 0.0) -> tuple[float, str]:
        """The largest share of a client in any combination, and the client's name.

        Args:
            least: a share that is not above it may be given as larger, up to it.
        """
        shares = largest_shares(self.weights, least)
        if not len(shares):
            return 0.0, ""
        client = int(shares.argmax())
        return float(shares[client]), self.names[client]


class _Kept(NamedTuple):
    """What is kept of the sums of a round, or of all.

    Attributes:
        round: the last round.
        sums: the sums by the vector.
        first: number of clients of the first sum.
        members: names of the clients of the last one.
        near: those of them of whom it is known that they had a part in it.
    """

    round: int
    sums: dict[str, ReleasedSums]
    first: int = 0
    members: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()


class SumHistory:
    """The sums that a server may combine, by the vectors that they add.

    Sums of different vectors of a client may be combined, too: one vector often follows
    from another: two models that begin alike stay alike. (One that is another times a
    number of the client's own is refused, see `Algorithm.sums_show_clients`.)

    A client knows the sums that it has a part in. So that some client knows all that may
    be combined, the clients of each sum are among those of the one before, and more than
    half of those of the first: any two sums then share clients, and whoever is in the
    last one is in all. Of a client that is no neighbour nobody tells another whether it was
    lost; so no client gets a neighbour that it did not have in the sum before.

    Args:
        scope: "run" for the sums of all rounds, also of other runs of the job; "round"
            for those of one round of a run, in all attempts of it.
        path: file in which the history is kept; None = it is not kept.

    Raises:
        ValueError: the file cannot be read.
    """

    def __init__(self, scope: str, path: Path | None = None) -> None:
        self._scope, self._path = scope, path
        self._runs: dict[str, _Kept] = {}
        if path is not None and path.exists():
            try:
                content = json.loads(path.read_text("utf-8"))
                require(has_valid_digest(content), "it is not what was written")
                for run, entry in content["runs"].items():
                    released = {}
                    for key, sums in entry["sums"].items():
                        names = tuple(map(str, sums["names"]))
                        weights = np.array(sums["weights"], float)
                        released[key] = ReleasedSums(
                            names, weights.reshape(-1, len(names))
                        )
                    self._runs[run] = _Kept(
                        int(entry["round"]),
                        released,
                        int(entry["first"]),
                        frozenset(map(str, entry["members"])),
                        frozenset(map(str, entry["near"])),
                    )
            except (OSError, ValueError, RecursionError) as error:
                raise ValueError(
                    f"cannot read {path}: {error}; it says which sums were added up, so"
                    " restore it, or begin a new job"
                ) from None

    def _place(self, run: str, round: int) -> tuple[str, int]:
        """The run and the round under which sums are kept."""
        return ("", 0) if self._scope == "run" else (run, round)

    def is_past(self, round: int, run: str = "") -> bool:
        """Whether the sums of a round are not known any more, as a later one was added."""
        run, round = self._place(run, round)
        return run in self._runs and round < self._runs[run].round

    def released(self, round: int, run: str = "") -> ReleasedSums:
        """The sums, of any vectors, that may be combined with those of a round.

        Args:
            round: the round; none that `is_past`.
            run: identity of the run.
        """
        together = ReleasedSums()
        for sums in self._of(round, run).sums.values():
            together = together.with_sums(sums.names, sums.weights)
        return together

    def vectors(self, round: int, run: str = "") -> list[Any]:
        """The names of the vectors that have sums."""
        return [json.loads(key) for key in self._of(round, run).sums]

    def members(self, round: int, run: str = "") -> frozenset[str] | None:
        """The clients of whom there may be further sums; None if there is no sum yet."""
        kept = self._of(round, run)
        return kept.members if kept.first else None

    def may_add(
        self,
        members: Collection[str],
        near: Collection[str],
        round: int,
        run: str = "",
    ) -> bool:
        """Whether a further sum of these clients may be combined with those before.

        Args:
            members: the clients of the sum.
            near: those of them of whom it is known that they have a part in it.
            round, run: see `released`.
        """
        kept = self._of(round, run)
        return not kept.first or (
            kept.members.issuperset(members)
            and kept.near.issuperset(near)
            and 2 * len(members) > kept.first
        )

    def _of(self, round: int, run: str) -> _Kept:
        run, round = self._place(run, round)
        kept = self._runs.get(run)
        return kept if kept is not None and kept.round == round else _Kept(round, {})

    def record(
        self,
        round: int,
        vector: Any,
        sums: ReleasedSums,
        members: Collection[str],
        run: str = "",
        *,
        near: Collection[str] | None = None,
    ) -> None:
        """Replace the sums of a vector, for `released` in this round and later ones.

        Args:
            round, run: see `released`.
            vector: names the vectors that are added, as plain values.
            sums: `released`, and further sums of this vector.
            members, near: of the last sum; they `may_add`. None = all members.
        """
        kept, key = self._of(round, run), json.dumps(vector)
        remaining = frozenset(members)
        known = remaining if near is None else frozenset(near)
        # Not by the ranks: a sum of those that are left has that of the sum of all.
        before = kept.sums.get(key)
        is_old = before is not None and before.shows_the_same_as(sums)
        if is_old and (remaining, known) == (kept.members, kept.near):
            return  # nothing is new
        all_sums = kept.sums if is_old else kept.sums | {key: sums}
        run, round = self._place(run, round)
        first = kept.first or len(remaining)
        self._runs[run] = _Kept(round, all_sums, first, remaining, known)
        self.save()

    def save(self) -> None:
        """Write the history to its file, if it has one."""
        if self._path is None:
            return
        stored = {}
        for name, (last, released, first, remaining, known) in self._runs.items():
            content = {
                key: {"names": sums.names, "weights": sums.weights.tolist()}
                for key, sums in released.items()
            }
            stored[name] = {
                "round": last,
                "sums": content,
                "first": first,
                "members": sorted(remaining),
                "near": sorted(known),
            }
        with atomic_write(self._path) as temporary:
            temporary.write_text(json.dumps(with_digest({"runs": stored})), "utf-8")
