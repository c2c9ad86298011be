"""A process's shard of a federation: the clients whose examples it holds, where several
processes train one federation together (`jax.distributed`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedtailor._base.choice import require
from fedtailor._base.files import AnyPath, existing_file, reason, translate_read_errors
from fedtailor._base.tensors import TensorFile
from fedtailor.data.federation.checks import SPLITS
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.data.federation.storage import DAMAGE_ERRORS, fields_of
from fedtailor.models.tasks import plain_loss
from fedtailor.protocol import PreprocessingFacts


@dataclass(frozen=True, eq=False)
class FederationShard:
    """The clients of a federation that one process trains.

    Give it to `fedtailor.run` instead of a federation, in every process. Each process
    then holds the examples and states of these clients only.

    Attributes:
        own: the federation of these clients.
        positions: their positions in the federation of all clients; None = the clients of
            each process follow those of the processes before it.
        digest: the digest of the federation of all clients; None = it is made from those
            of the clients.

    Example:
        >>> shard = ft.federation.shard(federation)
        >>> len(shard.own)  # a single process has all of them
        20
    """

    own: Federation
    positions: NDArray[np.int64] | None = None
    digest: str | None = None


def shard(
    federation: Federation, number: int | None = None, of: int | None = None
) -> FederationShard:
    """The shard of a process in a federation that is in memory.

    Nothing of the other clients is kept, if the caller drops the federation.

    Args:
        federation: the federation of all clients.
        number: which shard, from 0; None = that of this process of `jax.distributed`.
        of: the number of shards; None = that of the processes.

    Raises:
        ValueError: there are fewer clients that train than shards.

    Example:
        >>> parts = [ft.federation.shard(federation, number, of=4) for number in range(4)]
        >>> [len(part.own) for part in parts]
        [5, 5, 5, 5]
    """
    number, of = _number(number, of)
    rows = np.sum(list(federation.sizes.values()), axis=0)
    positions = _positions(rows, federation.unseen, number, of)
    own = federation.only([federation.names[position] for position in positions])
    return FederationShard(own, positions, federation.digest)


def load_shard(
    path: AnyPath, number: int | None = None, of: int | None = None
) -> FederationShard:
    """The shard of a process in a federation that `save` wrote.

    Only the examples of its clients are read. So nothing checks that the others are as
    they were saved; `fedtailor check` does.

    Args:
        path: the file.
        number: which shard, from 0; None = that of this process of `jax.distributed`.
        of: the number of shards; None = that of the processes.

    Raises:
        ValueError: the file is missing, cannot be read, is damaged or holds no
            federation; or there are fewer clients that train than shards.

    Example:
        >>> path = ft.federation.save(federation, "digits.safetensors")
        >>> len(ft.federation.load_shard(path, 0, of=4).own.x)
        450
    """
    number, of = _number(number, of)
    path = existing_file(path)
    try:
        with translate_read_errors(path):
            return _load(path, number, of)
    except (*DAMAGE_ERRORS, SafetensorError) as error:
        raise ValueError(
            f"{path} is damaged or holds no federation ({reason(error)}); save it again"
        ) from None


def _load(path: Path, number: int, of: int) -> FederationShard:
    """`load_shard` without error handling."""
    file = TensorFile(path)
    fields = fields_of(path, file.texts)
    unseen = file["unseen"]
    splits = {
        split: Ragged(file[f"{split}.rows"], file[f"{split}.offsets"])
        for split in SPLITS
    }
    rows_of_all = np.sum([split.sizes for split in splits.values()], axis=0)
    positions = _positions(rows_of_all, unseen, number, of)
    own = {name: split.take(positions) for name, split in splits.items()}
    rows = np.unique(np.concatenate([split.rows for split in own.values()]))
    renumbered: Any = {
        name: split.renumber(np.searchsorted(rows, split.rows))
        for name, split in own.items()
    }
    names = fields.pop("names")
    federation = Federation(
        x=file.rows("x", rows),
        y=file.rows("y", rows),
        **renumbered,
        names=tuple(names[position] for position in positions),
        groups=file["groups"][positions] if "groups" in file else None,
        unseen=unseen[positions],
        public=file.get("public"),
        weights=file.rows("weights", rows) if "weights" in file else None,
        **fields,
    )
    return FederationShard(federation, positions, file.texts["federation_digest"])


def _number(number: int | None, of: int | None) -> tuple[int, int]:
    """The number of a shard and of all shards; by default those of `jax.distributed`."""
    number = jax.process_index() if number is None else number
    of = jax.process_count() if of is None else of
    require(
        of >= 1 and 0 <= number < of,
        f"there is no shard {number} of {of}; shards are counted from 0",
    )
    return number, of


def _positions(
    rows: NDArray[np.int64], unseen: NDArray[np.bool_], number: int, of: int
) -> NDArray[np.int64]:
    """The positions of the clients of a shard, ascending.

    Clients that train, and those that never do, are each cut into runs of about equally
    many rows.

    Args:
        rows: [m] the number of examples of each client.
        unseen: [m] whether it never trains.
        number: which shard.
        of: the number of shards.
    """
    found = []
    for is_unseen in (False, True):
        clients = np.flatnonzero(unseen == is_unseen)
        middle = np.cumsum(rows[clients]) - rows[clients] / 2
        owner = np.floor(middle * of / max(rows[clients].sum(), 1)).astype(np.int64)
        owner = np.minimum(owner, of - 1)
        if not is_unseen:
            require(
                len(clients) >= of,
                f"{len(clients)} clients train, and there are {of} processes; each"
                " needs one: start fewer",
            )
            # A client with very many examples may leave a shard without a client.
            if len(np.unique(owner)) < of:
                owner = np.arange(len(clients)) * of // len(clients)
        found.append(clients[owner == number])
    return np.sort(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class ShardedData:
    """What each process knows about the clients of all processes (implements
    `fedtailor.protocol.DataFacts`).

    Attributes:
        process: [m] the number of the process that holds each client.
        positions: the positions of this process's clients.
        most_examples: the most examples that a process holds.
        most_rows: the most rows in all splits of a process's clients.
    """

    name: str
    names: tuple[str, ...]
    groups: NDArray[np.int64] | None
    unseen: NDArray[np.bool_]
    sizes: Mapping[str, NDArray[np.int64]]
    digest: str
    target_units: tuple[float, float]
    default_metrics: tuple[str, ...]
    preprocessing: PreprocessingFacts | None
    public: NDArray[Any] | None
    process: NDArray[np.int64]
    positions: NDArray[np.int64]
    most_examples: int
    most_rows: int

    @property
    def description(self) -> dict[str, Any]:
        return {"name": self.name, "clients": len(self.names), "digest": self.digest}

    def origin_in(self, directory: Path) -> None:
        """Only the program that made the shards knows where the data are."""
        return

    @classmethod
    def of(cls, own_shard: FederationShard) -> "ShardedData":
        """Exchange what processes tell each other about their clients. All of them must
        call it.

        Raises:
            ValueError: the shards do not fit together.
        """
        told = [
            json.loads(text) for text in gather_texts(json.dumps(_facts(own_shard)))
        ]
        own = own_shard.own
        first = told[0]
        for number, other in enumerate(told):
            for key, what in _COMMON.items():
                require(
                    other[key] == first[key],
                    f"the shards do not fit together: {what} of process {number} is"
                    f" {other[key]}, and that of process 0 is {first[key]}",
                )
        counts = [len(one["names"]) for one in told]
        names = _joined(one["names"] for one in told)
        if first["positions"] is None:
            order = np.arange(len(names))
        else:
            order = np.argsort(_joined(one["positions"] for one in told), kind="stable")
        process = np.repeat(np.arange(len(told)), counts)[order]
        names = tuple(names[place] for place in order)
        require(
            len(set(names)) == len(names),
            "a client is in the shards of two processes; each client is trained by one",
        )

        def of_all(key: str) -> NDArray[Any]:
            return np.array(_joined(one[key] for one in told))[order]

        digest = first["digest"]
        if digest is None:
            parts = [*map(str, of_all("digests")), json.dumps(first["common"])]
            digest = hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
        return cls(
            name=own.name,
            names=names,
            groups=None if first["groups"] is None else of_all("groups"),
            unseen=of_all("unseen").astype(bool),
            sizes={split: of_all(split).astype(np.int64) for split in SPLITS},
            digest=digest,
            target_units=own.target_units,
            default_metrics=own.default_metrics,
            preprocessing=own.preprocessing,
            public=own.public,
            process=process,
            positions=np.flatnonzero(process == jax.process_index()),
            most_examples=max(one["examples"] for one in told),
            most_rows=max(sum(sum(one[split]) for split in SPLITS) for one in told),
        )


_COMMON = {
    "common": "the form of the data",
    "digest": "the digest of all data",
    "is_placed": "whether positions are given",
    "has_groups": "whether there are groups",
}
"""What must be equal in all shards, and how messages call it."""


def _facts(own_shard: FederationShard) -> dict[str, Any]:
    """What a process tells the others about its clients."""
    own = own_shard.own
    preprocessing = own.preprocessing
    digests = None
    if own_shard.digest is None:
        digests = [_client_digest(own, index) for index in range(len(own))]
    return {
        "common": {
            "name": own.name,
            "classes": own.classes,
            "class_names": own.class_names,
            "shift": own.shift,
            "scale": own.scale,
            "loss": None if own.loss is None else plain_loss(own.loss),
            "inputs": [list(own.input_shape), str(own.x.dtype)],
            "targets": [list(own.y.shape[1:]), str(own.y.dtype)],
            "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        },
        "digest": own_shard.digest,
        "digests": digests,
        "is_placed": own_shard.positions is not None,
        "positions": (
            None if own_shard.positions is None else own_shard.positions.tolist()
        ),
        "has_groups": own.groups is not None,
        "groups": None if own.groups is None else own.groups.tolist(),
        "names": own.names,
        "unseen": own.unseen.tolist(),
        "examples": len(own.x),
        **{split: getattr(own, split).sizes.tolist() for split in SPLITS},
    }


def _client_digest(own: Federation, index: int) -> str:
    """A digest of a client and its examples."""
    client = own.client(index)
    sha256 = hashlib.sha256(repr((client.name, client.group, client.unseen)).encode())
    for split in (client.train, client.val, client.test):
        for array in split:
            sha256.update(f"{array.dtype} {array.shape}".encode())
            sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def _joined(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """The entries of several lists."""
    return [entry for part in parts for entry in part]


def gather(values: NDArray[Any]) -> NDArray[Any]:
    """An array of each process, in their order [processes, ...]. All must call it, with
    equal shapes and types.
    """
    # As bytes: JAX would turn 64 bits into 32.
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    of_all = np.asarray(process_allgather(data)).reshape(-1, len(data))
    return of_all.view(values.dtype).reshape(-1, *values.shape)


def gather_texts(text: str) -> list[str]:
    """The texts of all processes, in their order. All of them must call it."""
    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = gather(np.array([len(data)])).ravel()
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows = zip(gather(padded), sizes, strict=True)
    return [row[:size].tobytes().decode() for row, size in rows]
