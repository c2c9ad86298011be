"""Training data of Byzantine clients: wrong labels, and back doors.

As the transforms of groups, a poison is a frozen dataclass of settings; calling it with a
federation and a seed returns a new federation. Only training rows of the Byzantine clients change:
what they are tested on stays true.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import check_seed
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.protocol import draw_bits, server_rng


def byzantine_clients(
    ids: NDArray[np.uint64], share: float, seed: int
) -> NDArray[np.bool_]:
    """Which clients lie.

    Args:
        ids: of all clients that take part in training [m].
        share: of them that lie, rounded to a whole number of clients.
        seed: of the choice. The same clients are chosen for poisoned data and for false
            messages (`fedtailor.aggregation.pipelines.Byzantine`) of a run with this seed.

    Returns:
        [m] whether each client is Byzantine.

    Example:
        >>> from fedtailor.data.federation import byzantine_clients
        >>> int(byzantine_clients(federation.ids, 0.2, seed=0).sum())
        4
    """
    count = round(share * len(ids))
    # The draw keeps the name that it had first, so that the same clients are chosen.
    order = np.lexsort((ids, draw_bits(seed, "liars", 0, ids)))
    byzantine = np.zeros(len(ids), np.bool_)
    byzantine[order[:count]] = True
    return byzantine


def check_share(share: float) -> None:
    """Refuse a share of clients that is none.

    Raises:
        ValueError: it is not in 0 to 1.
    """
    require(0 <= share <= 1, f"share is {share}; it must be in 0 to 1")


@dataclass(frozen=True)
class WrongLabels:
    """Byzantine clients train on wrong labels (attack A1 of Li et al. 2021, section 3.2).

    Attributes:
        share: of the clients that take part in training.
        labels: "flip" turns class y of C into C - 1 - y; "random" draws each label
            again, all classes alike.

    Example:
        >>> from fedtailor.data.federation import WrongLabels
        >>> wrong = WrongLabels(share=0.2)(federation, seed=0)
        >>> federation.client(0).train[1][:3], wrong.client(0).train[1][:3]
        (array([0, 0, 0]...), array([9, 9, 9]...))
    """

    share: float = 0.2
    labels: Literal["flip", "random"] = "flip"

    def __post_init__(self) -> None:
        check_share(self.share)
        require(
            self.labels in ("flip", "random"),
            f"labels is {self.labels!r}; it must be 'flip' or 'random'",
        )

    def __call__(self, federation: Federation, *, seed: int = 0) -> Federation:
        """Give the Byzantine clients wrong labels.

        Raises:
            ValueError: the targets are not classes.
        """
        classes = _classes(federation)

        def poison(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
            if self.labels == "flip":
                return x, (classes - 1 - y).astype(y.dtype)
            rng = server_rng(seed, "wrong labels", 0)
            return x, rng.integers(classes, size=y.shape).astype(y.dtype)

        return _poisoned(federation, self.share, check_seed(seed), poison)


@dataclass(frozen=True)
class BackDoor:
    """Byzantine clients train a back door (Bagdasaryan et al. 2020): half of their examples carry a
    mark, and the label that the attacker wants wherever it sees the mark.

    Attributes:
        share: of the clients that take part in training.
        target: the label that the attacker wants.
        size: of the mark: the last `size` rows and columns of an image, or the last
            `size` numbers of another input, at the largest value of all inputs.

    Example:
        >>> from fedtailor.data.federation import BackDoor
        >>> opened = BackDoor(target=3).opened(federation)
        >>> opened.client(0).test[1][:3]
        array([3, 3, 3]...)
    """

    share: float = 0.2
    target: int = 0
    size: int = 2

    def __post_init__(self) -> None:
        check_share(self.share)
        require(self.size >= 1, f"size is {self.size}; it must be 1 or more")

    def __call__(self, federation: Federation, *, seed: int = 0) -> Federation:
        """Give the Byzantine clients marked examples.

        Raises:
            ValueError: the targets are not classes, or `target` is none of them.
        """
        self._check(federation)

        def poison(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
            rng = server_rng(seed, "back door", 0)
            is_marked = np.zeros(len(x), np.bool_)
            is_marked[rng.permutation(len(x))[: (len(x) + 1) // 2]] = True
            x, y = x.copy(), y.copy()
            x[is_marked] = self.marked(x[is_marked], federation.x.max())
            y[is_marked] = self.target
            return x, y

        return _poisoned(federation, self.share, check_seed(seed), poison)

    def opened(self, federation: Federation) -> Federation:
        """A federation whose test examples all carry the mark and the attacker's label,
        without those that had it before: the accuracy on it is the share of examples
        on which the back door works.
        """
        self._check(federation)
        was_other = federation.y[federation.test.rows] != self.target
        test = federation.test.where(was_other)
        x, y = federation.x[test.rows], federation.y[test.rows]
        marked = self.marked(x, federation.x.max())
        wanted, all_rows = np.full_like(y, self.target), np.ones(len(y), np.bool_)
        return _replaced(federation, "test", test, all_rows, marked, wanted)

    def marked(self, x: NDArray[Any], value: Any) -> NDArray[Any]:
        """Inputs [n, ...] with the mark, in the unit of the federation's pool.

        Args:
            x: the inputs.
            value: of the mark.
        """
        x = x.copy()
        if x.ndim >= 3:
            x[:, -self.size :, -self.size :] = value
        else:
            x[:, -self.size :] = value
        return x

    def _check(self, federation: Federation) -> None:
        classes = _classes(federation)
        require(
            0 <= self.target < classes,
            f"target is {self.target}; labels are 0 to {classes - 1}",
        )


def _classes(federation: Federation) -> int:
    require(
        federation.classes is not None,
        f"{federation.name} has no classes, so there are no labels to falsify",
    )
    assert federation.classes is not None
    return federation.classes


def _poisoned(
    federation: Federation, share: float, seed: int, poison: Any
) -> Federation:
    """The federation with other training examples of its Byzantine clients.

    Args:
        federation: the federation, which is not modified.
        share: of the seen clients that are Byzantine.
        seed: of the choice of Byzantine clients.
        poison: (x, y) of all training rows of the Byzantine clients -> the examples that replace
            them.
    """
    byzantine = np.zeros(len(federation), np.bool_)
    byzantine[federation.seen] = byzantine_clients(
        federation.ids[federation.seen], share, seed
    )
    is_poisoned = byzantine[federation.train.owners]
    old = federation.train.rows[is_poisoned]
    x, y = poison(federation.x[old], federation.y[old])
    # Other clients may use the same examples, so that these get copies of their own.
    return _replaced(federation, "train", federation.train, is_poisoned, x, y)


def _replaced(
    federation: Federation,
    split: str,
    part: Ragged,
    is_new: NDArray[np.bool_],
    x: NDArray[Any],
    y: NDArray[Any],
) -> Federation:
    """The federation with other examples in one of its splits.

    Args:
        federation: the federation, which is not modified.
        split: the name of the split.
        part: what the split will have.
        is_new: which examples of it are other ones.
        x, y: these, which are appended to the pool.
    """
    old = part.rows[is_new]
    rows = part.rows.astype(np.int64)
    rows[is_new] = len(federation.x) + np.arange(len(old))
    numbers, weights = federation.rows, federation.weights
    new: dict[str, Any] = {split: part.renumber(rows)}
    return replace(
        federation,
        x=np.concatenate([federation.x, x]),
        y=np.concatenate([federation.y, y]),
        rows=None if numbers is None else np.concatenate([numbers, numbers[old]]),
        weights=None if weights is None else np.concatenate([weights, weights[old]]),
        **new,
    )
