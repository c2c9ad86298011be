"""Shifts between groups of clients: each group sees the world in its own way.

A transform is a small record of its settings; called with a federation (and a seed) it
returns a new one whose pool holds the examples as each group sees them. Groups are
assigned evenly and at random, by the clients' names, over seen and over unseen clients;
a federation that already has groups gets the pairs (old group, new group).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import SPLITS, check_integer, check_seed
from fedtailor.federation.federation import Federation
from fedtailor.protocol import draw_bits, require, server_rng

_ROUNDING = 1e-12
"""A feature whose values differ by less than this part of the largest is constant."""

Groups = NDArray[np.integer[Any]]
"""The group of each client [m]."""

Examples = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [n, ...] and targets [n, ...]."""

Change = Callable[[NDArray[Any], NDArray[Any], int], Examples]
"""(inputs [n, ...], targets [n, ...], group) -> both as the group sees them."""


@dataclass(frozen=True)
class Rotations:
    """Covariate shift: each group sees images turned by a multiple of 90 degrees.

    Mestoukirdi et al., section V.

    Attributes:
        turns: quarter turns, counterclockwise, one entry for each group.
    """

    turns: tuple[int, ...] = (0, 1, 2, 3)

    def __post_init__(self) -> None:
        require(
            len(self.turns) >= 1,
            "turns is empty; give the quarter turns of each group, such as (0, 1,"
            " 2, 3)",
        )
        require(
            all(isinstance(turn, int) for turn in self.turns),
            f"turns is {self.turns}; give whole quarter turns",
        )

    def __call__(
        self, federation: Federation, *, seed: int = 0, groups: Groups | None = None
    ) -> Federation:
        """Rotate the images of each group.

        Args:
            federation: what is rotated; it stays as it is.
            seed: of the random groups.
            groups: [m] the entry of `turns` of each client; None = evenly at random.

        Returns:
            A federation with the rotated images, whose groups are these.

        Raises:
            ValueError: inputs that are no square images, [h, h], [h, h, c] or flat with
                h^2 entries.
        """
        check_seed(seed)
        side = _side(federation.input_shape)

        def change(x: NDArray[Any], y: NDArray[Any], group: int) -> Examples:
            images = x.reshape(len(x), side, side, -1)
            turned = np.rot90(images, self.turns[group], axes=(1, 2))
            return turned.reshape(x.shape), y

        assigned = _assign(federation, len(self.turns), seed, groups)
        return _by_group(federation, assigned, change)


@dataclass(frozen=True)
class LabelPermutations:
    """Concept shift: each group names the classes by a random permutation of its own.

    Mestoukirdi et al., section V.

    Attributes:
        groups: how many groups; no two have the same permutation.
    """

    groups: int = 4

    def __post_init__(self) -> None:
        check_integer(self.groups, "groups", 1)

    def __call__(
        self, federation: Federation, *, seed: int = 0, groups: Groups | None = None
    ) -> Federation:
        """Permute the labels of each group.

        Args:
            federation: what is changed; it stays as it is.
            seed: of the permutations and of the random groups.
            groups: [m] the group of each client; None = evenly at random.

        Returns:
            A federation with the permuted labels, whose groups are these.

        Raises:
            ValueError: targets that are no labels, or more groups than permutations.
        """
        if federation.classes is None:
            raise ValueError(
                f"{federation.name} has no classes, so there are no labels to permute"
            )
        permutations = self._permutations(
            federation.classes, len(federation), check_seed(seed)
        )

        def change(x: NDArray[Any], y: NDArray[Any], group: int) -> Examples:
            return x, permutations[group][y].astype(y.dtype)

        assigned = _assign(federation, self.groups, seed, groups)
        changed = _by_group(federation, assigned, change)
        return replace(changed, class_names=None)

    def _permutations(
        self, classes: int, clients: int, seed: int
    ) -> list[NDArray[np.int64]]:
        if classes < 10 and self.groups > np.prod(np.arange(1, classes + 1)):
            raise ValueError(
                f"{classes} classes have fewer than {self.groups} permutations; use"
                " fewer groups"
            )
        require(
            self.groups <= clients,
            f"groups is {self.groups}, and there are {clients} clients; use at most one"
            " group for each client",
        )
        rng = server_rng(seed, "label permutations", 0)
        # Keyed by their entries, so that a permutation that is drawn twice counts once.
        permutations: dict[tuple[int, ...], NDArray[np.int64]] = {}
        while len(permutations) < self.groups:
            permutation = rng.permutation(classes)
            permutations.setdefault(tuple(permutation), permutation)
        return list(permutations.values())


def standardize(federation: Federation) -> Federation:
    """Standardize every feature (the last axis) by the seen clients' training rows.

    Constant features, and those that vary by rounding only, are shifted and not scaled.
    The statistics are of all clients together; a real federation would obtain them by
    secure aggregation.

    Returns:
        The same examples with the `shift` and `scale` that give each feature mean 0 and
        deviation 1.

    Raises:
        ValueError: token ids.
    """
    if federation.x.dtype == np.int32:
        raise ValueError(
            f"{federation.name} holds token ids, which cannot be standardized"
        )
    used = np.zeros(len(federation.x), np.bool_)
    used[federation.train.take(federation.seen).rows] = True
    values = federation.x[used].reshape(-1, federation.x.shape[-1]).astype(np.float64)
    mean = values.mean(axis=0)
    deviation = values.std(axis=0)
    # The mean of equal numbers is a rounding error away from them, so that their
    # deviation is not exactly 0: a division by it would enlarge the error.
    varies = np.ptp(values, axis=0) > _ROUNDING * np.abs(values).max(axis=0)
    scale = 1 / np.where(varies, deviation, 1.0)
    return replace(federation, shift=tuple(mean.tolist()), scale=tuple(scale.tolist()))


def _side(shape: tuple[int, ...]) -> int:
    """The side of square images of a shape: [h, h], [h, h, channels], or flat."""
    if len(shape) == 1:
        side = isqrt(shape[0])
        is_square = side * side == shape[0]
    else:
        side = shape[0]
        is_square = len(shape) in (2, 3) and shape[0] == shape[1]
    if not is_square or not side:
        raise ValueError(
            f"inputs of shape {shape} are no square images; reshape x to [N, h, h] or"
            " [N, h, h, channels]"
        )
    return side


def _assign(
    federation: Federation, count: int, seed: int, groups: Groups | None
) -> Groups:
    """The group of each client.

    Args:
        federation: whose clients.
        count: how many groups there are.
        seed: of random groups.
        groups: as the user gave them; None = evenly at random.

    Returns:
        [m] in 0..count-1.

    Raises:
        ValueError: what was given is something else.
    """
    m = len(federation)
    if groups is None:
        # Seen clients in a random order, then unseen ones: dealt one by one, either
        # kind fills all groups evenly.
        shuffle = draw_bits(seed, "group", 0, federation.ids)
        order = np.lexsort((shuffle, federation.unseen))
        groups = np.empty(m, np.int64)
        groups[order] = np.arange(m) % count
    groups = np.asarray(groups)
    if groups.shape != (m,) or not np.issubdtype(groups.dtype, np.integer):
        raise ValueError(
            f"groups is {groups.dtype} of shape {groups.shape}; give one integer for"
            f" each of {m} clients"
        )
    if groups.min() < 0 or groups.max() >= count:
        at = int(np.argmax((groups < 0) | (groups >= count)))
        raise ValueError(
            f"client {federation.names[at]!r} is in group {groups[at]}; groups count"
            f" 0..{count - 1}"
        )
    return groups


def _by_group(federation: Federation, groups: Groups, change: Change) -> Federation:
    """A new pool with the examples as each group sees them.

    Rows that several groups use are in it once for each.
    """
    splits = {split: getattr(federation, split) for split in SPLITS}
    new_rows = {
        split: np.empty(len(part.rows), np.int64) for split, part in splits.items()
    }
    xs, ys = [], []
    start = 0
    for group in np.unique(groups):
        # Which entries of the splits belong to clients of this group, and which
        # examples these use.
        in_group = {
            split: (groups == group)[part.owners] for split, part in splits.items()
        }
        used = np.zeros(len(federation.x), np.bool_)
        for split, part in splits.items():
            used[part.rows[in_group[split]]] = True
        # The used examples stand in the new pool behind those of the groups before.
        new_number = start - 1 + np.cumsum(used)
        for split, part in splits.items():
            new_rows[split][in_group[split]] = new_number[part.rows[in_group[split]]]
        x, y = change(federation.x[used], federation.y[used], int(group))
        xs.append(x)
        ys.append(y)
        start += len(x)
    # Groups on top of groups: clients are alike only if both agree.
    if federation.groups is not None:
        pairs = np.stack([federation.groups, groups])
        _, groups = np.unique(pairs, axis=1, return_inverse=True)
        groups = groups.reshape(-1)
    renumbered = {
        split: part.renumber(new_rows[split]) for split, part in splits.items()
    }
    return replace(
        federation,
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        groups=groups,
        **renumbered,
    )
