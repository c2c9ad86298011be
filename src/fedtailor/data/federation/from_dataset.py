"""Federations of data sets as other libraries hold them: PyTorch's and Hugging Face's.

Both are read by what they can do (a length, an example by its number), so that neither
library is needed here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.build import from_arrays
from fedtailor.data.federation.checks import plain_array
from fedtailor.data.federation.federation import Federation
from fedtailor.models.inputs import Inputs
from fedtailor.models.tasks import token_cross_entropy

_Inputs = NDArray[Any] | Mapping[str, NDArray[Any]]
LABELS = ("label", "labels", "target", "y")
"""The columns that hold targets, if none is named."""


def from_dataset(
    data: Any,
    client: ArrayLike | str | None = None,
    *,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    tokenizer: Callable[[list[str]], Any] | None = None,
    next_token: bool = False,
    **options: Any,
) -> Federation:
    """Build a federation from map-style data sets of PyTorch, whose examples are pairs
    (input, target), or of Hugging Face, whose examples have columns.

    All examples are read once, as the data set gives them: a transform that draws at
    random is applied once, too.

    Args:
        data: a data set, or client -> data set.
        client: of a single data set, the client of each example [N], or the column that
            has it.
        x: the column of inputs: numbers or images of one shape; or the columns, if an
            example has several inputs (in pairs, a mapping of names to arrays). By default
            the one that is neither the target nor the client.
        y: the column of targets; by default label, labels, target or y. If the data set's
            `features` have names of classes, so has the federation.
        tokenizer: turns texts [n] into token ids [n, t], or into a mapping that has them as
            "input_ids", and as "attention_mask" what is no padding.
        next_token: the targets of a text are its next tokens, with -1 for padding.
        options: further arguments of `from_arrays`.

    Returns:
        The federation.

    Raises:
        ValueError: a data set has no length, a column is missing or none is obvious, or
            inputs are texts without a tokenizer or differ in shape.

    Example:
        >>> pairs = [(np.array([float(n)]), n % 2) for n in range(12)]
        >>> ft.federation.from_dataset({"a": pairs, "b": pairs}).names
        ('a', 'b')
    """
    reading = _Reading(x, y, tokenizer, next_token)
    if next_token:
        require(
            tokenizer is not None and y is None,
            "next_token takes targets from the texts; give the tokenizer, and leave y out",
        )
        options.setdefault("loss", token_cross_entropy)
        if "classes" not in options:
            require(
                hasattr(tokenizer, "__len__"),
                "the tokenizer does not say how many tokens it knows; give"
                " classes=network.known_tokens",
            )
            options["classes"] = len(tokenizer)  # pyright: ignore[reportArgumentType]
    if isinstance(data, Mapping) and not hasattr(data, "column_names"):
        require(
            client is None,
            "client is given and each client has a data set of its own; leave it out",
        )
        require(len(data) > 0, "there is no data set; give client -> data set")
        parts = {str(name): _examples(one, reading, None) for name, one in data.items()}
        owners = np.repeat(list(parts), [len(targets) for _, targets in parts.values()])
        inputs = _joined([inputs for inputs, _ in parts.values()])
        targets = np.concatenate([targets for _, targets in parts.values()])
        names = _class_names(next(iter(data.values())), reading)
        return _federation(inputs, targets, owners, names, options)
    require(
        client is not None,
        "a single data set does not say whose its examples are; name the column of the"
        " client, or give the client of each example, or client -> data set",
    )
    assert client is not None
    column = client if isinstance(client, str) else None
    inputs, targets = _examples(data, reading, column)
    owners = _column(data, column) if column is not None else client
    names = _class_names(data, reading)
    return _federation(inputs, targets, owners, names, options)


def _joined(parts: list[Any]) -> _Inputs:
    """The inputs of all clients.

    Raises:
        ValueError: they differ in shape or in name.
    """
    shapes = {
        str(Inputs.of(part) if isinstance(part, Mapping) else list(part.shape[1:]))
        for part in parts
    }
    require(
        len(shapes) == 1,
        f"inputs of the clients have the shapes {' and '.join(sorted(shapes))}; give all"
        " one shape",
    )
    if not isinstance(parts[0], Mapping):
        return np.concatenate(parts)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _federation(
    inputs: _Inputs,
    targets: NDArray[Any],
    owners: ArrayLike,
    class_names: Sequence[str] | None,
    options: Mapping[str, Any],
) -> Federation:
    if class_names is None or "classes" in options:
        return from_arrays(inputs, targets, owners, **options)
    count = len(class_names)
    federation = from_arrays(inputs, targets, owners, classes=count, **options)
    return replace(federation, class_names=tuple(class_names))


@dataclass(frozen=True)
class _Reading:
    """What is read of each data set: the arguments of `from_dataset`."""

    x: str | Sequence[str] | None
    y: str | None
    tokenizer: Callable[[list[str]], Any] | None
    next_token: bool


def _class_names(data: Any, reading: _Reading) -> Sequence[str] | None:
    """The names of the classes, if a data set of columns has them."""
    features, first = getattr(data, "features", None), data[0]
    if reading.next_token or not features or not isinstance(first, Mapping):
        return None
    target = features.get(_name_of_target(first, reading.y))
    return getattr(target, "names", None)


def _examples(
    data: Any, reading: _Reading, client: str | None
) -> tuple[_Inputs, NDArray[Any]]:
    """The inputs and the targets of a data set."""
    x, y = reading.x, reading.y
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"{type(data).__name__} has no length or no examples by number; give a map-style"
        " data set, such as a list of the examples",
    )
    require(len(data) > 0, "a data set has no examples; leave its client out")
    first = data[0]
    if isinstance(first, Mapping):
        target = None if reading.next_token else _name_of_target(first, y)
        others = [name for name in first if name not in (target, client)]
        require(
            x is not None or len(others) == 1,
            f"the columns {', '.join(others)} could all be inputs; name one with x",
        )
        if x is not None and not isinstance(x, str):
            require(
                reading.tokenizer is None,
                "a tokenizer takes one column of texts; name it alone with x",
            )
            assert target is not None
            inputs = {name: _column(data, name) for name in x}
            return inputs, _column(data, target)
        inputs = _column(data, others[0] if x is None else x)
        if reading.tokenizer is not None:
            inputs, is_token = _tokens(reading.tokenizer, inputs)
            if target is None:
                return inputs[:, :-1], np.where(is_token, inputs, -1)[:, 1:]
        assert target is not None
        targets = _column(data, target)
    else:
        require(
            isinstance(first, tuple | list) and len(first) == 2,
            "an example is not a pair (input, target) and has no columns; give a data set"
            " whose examples are one of them",
        )
        require(
            x is None and y is None and client is None and reading.tokenizer is None,
            "the examples are pairs (input, target) and have no columns; leave the names of"
            " columns out",
        )
        pairs = [data[number] for number in range(len(data))]
        if isinstance(first[0], Mapping):
            given = {tuple(sorted(pair[0])) for pair in pairs}
            require(
                len(given) == 1,
                f"the inputs of an example are {' or '.join(map(str, sorted(given)))}; give"
                " all examples the same",
            )
            inputs = {
                name: _stacked([pair[0][name] for pair in pairs], name)
                for name in first[0]
            }
            return inputs, _stacked([pair[1] for pair in pairs], "targets")
        inputs = _stacked([pair[0] for pair in pairs], "inputs")
        targets = _stacked([pair[1] for pair in pairs], "targets")
    require(
        inputs.dtype.kind in "fiub",
        "inputs are not numbers; turn texts into tokens of one length by a tokenizer",
    )
    return inputs, targets


def _tokens(
    tokenizer: Callable[[list[str]], Any], texts: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The token ids [n, t] of texts, and which of them are no padding.

    Raises:
        ValueError: the tokenizer fails, or gives what no model takes.
    """
    require(
        texts.dtype.kind in "UO" and texts.ndim == 1,
        "a tokenizer turns texts into tokens, and the inputs are no texts; leave it out,"
        " or name the column of texts with x",
    )
    try:
        encoded = tokenizer(texts.tolist())
    except Exception as error:  # whatever another library raises
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"the tokenizer fails: {line}") from None
    is_mapping = isinstance(encoded, Mapping)
    ids = encoded["input_ids"] if is_mapping else encoded
    lengths = {len(row) for row in ids}
    require(
        len(lengths) == 1,
        f"the tokenizer gives {min(lengths)} to {max(lengths)} tokens, and models take one"
        " length; have it pad: lambda texts: tokenizer(texts, padding='max_length',"
        " truncation=True, max_length=64)",
    )
    tokens = np.asarray(ids).astype(np.int32)
    is_token = np.ones(tokens.shape, bool)
    if is_mapping and "attention_mask" in encoded:
        is_token = np.asarray(encoded["attention_mask"]).astype(bool)
    padding = np.unique(tokens[~is_token])
    require(
        len(padding) < 2,
        f"the tokenizer hides the tokens {padding[:4].tolist()}, and only padding can be"
        " hidden; leave its attention_mask out",
    )
    # Models know padding by its id alone.
    require(
        not np.isin(tokens[is_token], padding).any(),
        f"the tokenizer pads with {padding.tolist()}, which texts hold as well; give it a"
        " padding token of its own",
    )
    return tokens, is_token


def _name_of_target(example: Mapping[str, Any], y: str | None) -> str:
    found = [name for name in LABELS if name in example]
    require(
        y is not None or len(found) == 1,
        f"no single column of {', '.join(example)} is {', '.join(LABELS)}; name that of"
        " the target with y",
    )
    return found[0] if y is None else y


def _column(data: Any, name: str) -> NDArray[Any]:
    """A column of a data set whose examples have columns."""
    first = data[0]
    require(
        isinstance(first, Mapping) and name in first,
        f"there is no column {name!r}; the data set has"
        f" {', '.join(first) if isinstance(first, Mapping) else 'no columns'}",
    )
    return _stacked([data[number][name] for number in range(len(data))], name)


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    # `np.asarray` reads a tensor or an image of PIL; of a list of them it reads none.
    return plain_array([np.asarray(value) for value in values], name)
