"""`DataFacts`: what a run asks about its data, wherever they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray


class PreprocessingFacts(Protocol):
    """How rows of a user's table become inputs and targets of models.

    Attributes:
        inputs: names of the models' inputs.
        unmixing: [inputs, inputs] what deviations of inputs are multiplied with to get
            those of the columns; None if the inputs are not mixed.
        target_shift, target_scale: the user's target is y * target_scale + target_shift.
    """

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def unmixing(self) -> NDArray[np.float64] | None: ...

    @property
    def target_shift(self) -> float: ...

    @property
    def target_scale(self) -> float: ...

    def to_json(self) -> str:
        """The preprocessing as text, for a file next to a run or an export."""
        ...


class DataFacts(Protocol):
    """What a run knows about its data, without the examples. A `Federation` is one.

    Attributes:
        name: name of the data in tables.
        names: [m] names of all clients, in the user's order.
        groups: [m] true group of each client; None if there are none.
        unseen: [m] True for clients that never take part in training.
        sizes: numbers of rows of the clients [m], by split.
        digest: a digest of clients and examples, or of what stands for them.
        description: the table "data" of a manifest, which is equal when a run is resumed.
        target_units: (shift, scale): the user's target is y * scale + shift.
        default_metrics: the metrics of a run whose user requests none.
        preprocessing: how rows of a table become inputs; None without a table.
        public: [p, ...] inputs without labels that server and clients all have; None =
            there are none.
    """

    @property
    def name(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def groups(self) -> Int[np.ndarray, " m"] | None: ...

    @property
    def unseen(self) -> Bool[np.ndarray, " m"]: ...

    @property
    def sizes(self) -> Mapping[str, Int[np.ndarray, " m"]]: ...

    @property
    def digest(self) -> str: ...

    @property
    def description(self) -> Mapping[str, Any]: ...

    @property
    def target_units(self) -> tuple[float, float]: ...

    @property
    def default_metrics(self) -> tuple[str, ...]: ...

    @property
    def preprocessing(self) -> PreprocessingFacts | None: ...

    @property
    def public(self) -> NDArray[Any] | None: ...

    def origin_in(self, directory: Path) -> Mapping[str, Any] | None:
        """Where the data can be found again, for the manifest in a run's directory;
        None if only the user knows.
        """
        ...
