"""Transforms that make groups of clients differ, and standardization.

A transform is a frozen dataclass of settings. Calling it with a federation and a seed
returns a new federation, whose pool holds the transformed examples of each group.
Clients are assigned to groups at random, keyed by their names, so that seen and unseen
clients are both divided evenly. If a federation already has groups, the new groups are
the pairs (old group, new group).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import SPLITS, check_integer, check_seed
from fedtailor.data.federation.federation import Federation
from fedtailor.protocol import draw_bits, server_rng

_ROUNDING = 1e-12
"""A feature is constant if its range is less than this fraction of its largest value.
"""

Groups = NDArray[np.integer[Any]]
"""The group of each client [m]."""

InputsAndTargets = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [n, ...] and targets [n, ...]."""

ExampleTransform = Callable[[NDArray[Any], NDArray[Any], int], InputsAndTargets]
"""(inputs [n, ...], targets [n, ...], group) -> transformed inputs and targets."""


@dataclass(frozen=True)
class Rotations:
    """Covariate shift: rotate the images of each group by a multiple of 90 degrees.

    Mestoukirdi et al., section V.

    Attributes:
        turns: number of quarter turns of each group, counterclockwise.

    Example:
        >>> from fedtailor.data.federation import Rotations
        >>> turned = Rotations()(ft.scenarios.digits_rotated(seed=0), seed=0)
        >>> len(turned)
        20
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
            federation: the federation, which is not modified.
            seed: random seed of the groups.
            groups: [m] the group of each client, an index into `turns`; by default
                random groups of equal size.

        Returns:
            A federation with rotated images and these groups.

        Raises:
            ValueError: the inputs are not square images of shape [h, h], [h, h, c] or
                [h^2].
        """
        check_seed(seed)
        side = _side(federation.input_shape)

        def rotate(x: NDArray[Any], y: NDArray[Any], group: int) -> InputsAndTargets:
            images = x.reshape(len(x), side, side, -1)
            rotated = np.rot90(images, self.turns[group], axes=(1, 2))
            return rotated.reshape(x.shape), y

        groups = _assign_groups(federation, len(self.turns), seed, groups)
        return _transform_groups(federation, groups, rotate)


@dataclass(frozen=True)
class LabelPermutations:
    """Concept shift: permute the labels of each group by its own random permutation.

    Mestoukirdi et al., section V.

    Attributes:
        groups: number of groups. Their permutations are different.

    Example:
        >>> from fedtailor.data.federation import LabelPermutations
        >>> len(LabelPermutations(groups=2)(federation, seed=0))
        20
    """

    groups: int = 4

    def __post_init__(self) -> None:
        check_integer(self.groups, "groups", 1)

    def __call__(
        self, federation: Federation, *, seed: int = 0, groups: Groups | None = None
    ) -> Federation:
        """Permute the labels of each group.

        Args:
            federation: the federation, which is not modified.
            seed: random seed of the permutations and the groups.
            groups: [m] the group of each client; by default random groups of equal
                size.

        Returns:
            A federation with permuted labels and these groups.

        Raises:
            ValueError: the targets are not labels, or there are more groups than
                permutations.
        """
        if federation.classes is None:
            raise ValueError(
                f"{federation.name} has no classes, so there are no labels to permute"
            )
        permutations = self._permutations(
            federation.classes, len(federation), check_seed(seed)
        )

        def permute(x: NDArray[Any], y: NDArray[Any], group: int) -> InputsAndTargets:
            return x, permutations[group][y].astype(y.dtype)

        groups = _assign_groups(federation, self.groups, seed, groups)
        permuted = _transform_groups(federation, groups, permute)
        return replace(permuted, class_names=None)

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
        # A dict keyed by the entries, so that a permutation that is drawn twice counts
        # once.
        permutations: dict[tuple[int, ...], NDArray[np.int64]] = {}
        while len(permutations) < self.groups:
            permutation = rng.permutation(classes)
            permutations.setdefault(tuple(permutation), permutation)
        return list(permutations.values())


def standardize(federation: Federation) -> Federation:
    """Standardize every feature (the last axis) by the seen clients' training rows.

    Features that are constant up to rounding are shifted but not scaled. The statistics
    are those of all seen clients together; a real federation would compute them by
    secure aggregation.

    Returns:
        A federation with the same examples, and with the `shift` and `scale` that give
        each feature mean 0 and standard deviation 1.

    Raises:
        ValueError: the inputs are token ids.

    Example:
        >>> rows = ft.federation.standardize(federation).client(0).train.x
        >>> rows.shape
        (72, 8, 8)
    """
    if federation.x.dtype == np.int32:
        raise ValueError(
            f"{federation.name} holds token ids, which cannot be standardized"
        )
    is_used = np.zeros(len(federation.x), np.bool_)
    is_used[federation.train.take(federation.seen).rows] = True
    values = (
        federation.x[is_used].reshape(-1, federation.x.shape[-1]).astype(np.float64)
    )
    mean = values.mean(axis=0)
    deviation = values.std(axis=0)
    # The standard deviation of equal numbers may be a rounding error instead of 0, and
    # a division by it would give large numbers.
    varies = np.ptp(values, axis=0) > _ROUNDING * np.abs(values).max(axis=0)
    scale = 1 / np.where(varies, deviation, 1.0)
    return replace(federation, shift=tuple(mean.tolist()), scale=tuple(scale.tolist()))


def _side(shape: tuple[int, ...]) -> int:
    """The side length h of square images [h, h], [h, h, channels] or [h^2]."""
    if len(shape) == 1:
        side = isqrt(shape[0])
        is_square = side * side == shape[0]
    else:
        side = shape[0]
        is_square = len(shape) in (2, 3) and shape[0] == shape[1]
    if not is_square or not side:
        raise ValueError(
            f"inputs of shape {shape} are not square images; reshape x to [N, h, h] or"
            " [N, h, h, channels]"
        )
    return side


def _assign_groups(
    federation: Federation, count: int, seed: int, groups: Groups | None
) -> Groups:
    """Assign clients to random groups of equal size, or check the user's groups.

    Args:
        federation: the federation.
        count: number of groups.
        seed: random seed.
        groups: the user's groups; None = random groups.

    Returns:
        [m] the group of each client, in 0..count-1.

    Raises:
        ValueError: the user's groups have another shape, type or range.
    """
    m = len(federation)
    if groups is None:
        # Deal the seen clients in a random order, and then the unseen clients, so that
        # both are divided evenly.
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
        client = int(np.argmax((groups < 0) | (groups >= count)))
        raise ValueError(
            f"client {federation.names[client]!r} is in group {groups[client]}; groups count"
            f" 0..{count - 1}"
        )
    return groups


def _transform_groups(
    federation: Federation, groups: Groups, transform: ExampleTransform
) -> Federation:
    """Transform the examples of each group.

    A row that several groups use is copied for each of them.
    """
    require(
        federation.public is None,
        f"{federation.name} has a public set, which belongs to no group; transform the"
        " clients' data first, and set rows aside after it",
    )
    splits = {split: getattr(federation, split) for split in SPLITS}
    new_rows = {
        split: np.empty(len(part.rows), np.int64) for split, part in splits.items()
    }
    xs, ys = [], []
    start = 0
    for group in np.unique(groups):
        # Find the entries of the splits that belong to clients of this group, and the
        # examples that they use.
        in_group = {
            split: (groups == group)[part.owners] for split, part in splits.items()
        }
        is_used = np.zeros(len(federation.x), np.bool_)
        for split, part in splits.items():
            is_used[part.rows[in_group[split]]] = True
        # In the new pool these examples follow those of the previous groups.
        new_row = start - 1 + np.cumsum(is_used)
        for split, part in splits.items():
            new_rows[split][in_group[split]] = new_row[part.rows[in_group[split]]]
        x, y = transform(federation.x[is_used], federation.y[is_used], int(group))
        xs.append(x)
        ys.append(y)
        start += len(x)
    # If the federation had groups, the new groups are pairs of old and new ones.
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
