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
            the one that is neither the target nor the client. Whole numbers of a column
            `input_ids` are token ids.
        y: the column of targets; by default label, labels, target or y. If the data set's
            `features` have names of classes, so has the federation.
        tokenizer: turns texts [n] into token ids [n, t], or into a mapping that has them as
            "input_ids", and as "attention_mask" what is no padding.
        next_token: the targets of a text are its next tokens, with -1 for padding.
        options: further arguments of `from_arrays`.

    Returns:
        The federation.

    Raises:
        ValueError: a data set has no length or several splits, a column is missing or none
            is obvious, a cell is empty, clients name their classes differently, or inputs
            are texts without a tokenizer or differ in shape.

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
    _check_kind(data)
    if isinstance(data, Mapping):
        require(
            client is None,
            "client is given and each client has a data set of its own; leave it out",
        )
        require(len(data) > 0, "there is no data set; give client -> data set")
        parts = {str(name): _examples(one, reading, None) for name, one in data.items()}
        owners = np.repeat(list(parts), [len(part.targets) for part in parts.values()])
        inputs = _joined([part.inputs for part in parts.values()])
        targets = np.concatenate([part.targets for part in parts.values()])
        names = _common_names(
            {str(name): _class_names(one, reading) for name, one in data.items()}
        )
        return _federation(inputs, targets, owners, names, options)
    require(
        client is not None,
        "a single data set does not say whose its examples are; name the column of the"
        " client, or give the client of each example, or client -> data set",
    )
    assert client is not None
    column = client if isinstance(client, str) else None
    examples = _examples(data, reading, column)
    owners = client if examples.owners is None else examples.owners
    names = _class_names(data, reading)
    return _federation(examples.inputs, examples.targets, owners, names, options)


def _check_kind(data: Any) -> None:
    """Refuse what is no data set: a name, or the splits of one.

    Raises:
        ValueError: it is.
    """
    require(
        not isinstance(data, str),
        f"{data!r} is the name of a data set; load it first, such as by"
        " datasets.load_dataset",
    )
    # A mapping with columns is a `DatasetDict`.
    require(
        not (isinstance(data, Mapping) and hasattr(data, "column_names")),
        f"{type(data).__name__} has the splits {', '.join(map(str, data))}; give one of"
        " them, or what datasets.concatenate_datasets makes of them"
        if isinstance(data, Mapping)
        else "",
    )


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


def _common_names(found: Mapping[str, Sequence[str] | None]) -> Sequence[str] | None:
    """The names of the classes, which all clients have in one order.

    Raises:
        ValueError: they do not, so that a number would mean two classes.
    """
    (first, names), *others = found.items()
    for client, other in others:
        require(
            names is None or other is None or list(names) == list(other),
            f"class 0, 1, ... is {', '.join(names or ())} for {first!r} and"
            f" {', '.join(other or ())} for {client!r}; cast both to the same ClassLabel",
        )
    return names


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


@dataclass(frozen=True)
class _Examples:
    """The inputs and the targets of a data set, and whose they are if a column says so."""

    inputs: _Inputs
    targets: NDArray[Any]
    owners: NDArray[Any] | None = None


def _examples(data: Any, reading: _Reading, client: str | None) -> _Examples:
    """What is read of a data set.

    Raises:
        ValueError: as for `from_dataset`.
    """
    _check_kind(data)
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"{type(data).__name__} has no length or no examples by number; give a map-style"
        " data set, such as a list of the examples",
    )
    require(len(data) > 0, "a data set has no examples; leave its client out")
    first = data[0]
    if isinstance(first, Mapping):
        return _examples_of_columns(data, first, reading, client)
    require(
        isinstance(first, tuple | list) and len(first) == 2,
        "an example is not a pair (input, target) and has no columns; give a data set"
        " whose examples are one of them",
    )
    require(
        reading.x is None
        and reading.y is None
        and client is None
        and reading.tokenizer is None,
        "the examples are pairs (input, target) and have no columns; leave the names of"
        " columns out",
    )
    pairs = [data[number] for number in range(len(data))]
    targets = _stacked([pair[1] for pair in pairs], "targets")
    if isinstance(first[0], Mapping):
        given = {tuple(sorted(pair[0])) for pair in pairs}
        require(
            len(given) == 1,
            f"the inputs of an example are {' or '.join(map(str, sorted(given)))}; give"
            " all examples the same",
        )
        inputs = {
            name: _stacked([pair[0][name] for pair in pairs], name) for name in first[0]
        }
        return _Examples(inputs, targets)
    inputs = _stacked([pair[0] for pair in pairs], "inputs")
    return _Examples(_numbers(inputs), targets)


def _examples_of_columns(
    data: Any, first: Mapping[str, Any], reading: _Reading, client: str | None
) -> _Examples:
    """What is read of a data set whose examples have columns.

    Raises:
        ValueError: as for `from_dataset`.
    """
    x = reading.x
    if client is not None:
        _require_column(first, client)
    target = None if reading.next_token else _name_of_target(first, reading.y)
    others = [name for name in first if name not in (target, client)]
    require(
        x is not None or len(others) == 1,
        f"the columns {', '.join(others)} could all be inputs; name one with x",
    )
    inputs_of = others if x is None else [x] if isinstance(x, str) else list(x)
    for name in inputs_of:
        require(
            name not in (target, client) and inputs_of.count(name) == 1,
            f"x names the column {name!r}, which is the target, the client or named twice;"
            " leave it out of x",
        )
    names = [*inputs_of, *(name for name in (target, client) if name is not None)]
    columns = _columns(data, names)
    owners = None if client is None else columns[client]
    if x is not None and not isinstance(x, str):
        require(
            reading.tokenizer is None,
            "a tokenizer takes one column of texts; name it alone with x",
        )
        assert target is not None
        several = {name: columns[name] for name in inputs_of}
        return _Examples(several, columns[target], owners)
    inputs = columns[inputs_of[0]]
    if reading.tokenizer is not None:
        inputs, is_token = _tokens(reading.tokenizer, inputs)
        if target is None:
            following = np.where(is_token, inputs, -1)[:, 1:]
            return _Examples(inputs[:, :-1], following, owners)
    elif inputs_of == ["input_ids"] and inputs.dtype.kind in "iu":
        # Lists of whole numbers have no type, and tokenizers give this name to ids.
        inputs = inputs.astype(np.int32)
    assert target is not None
    return _Examples(_numbers(inputs), columns[target], owners)


def _numbers(inputs: NDArray[Any]) -> NDArray[Any]:
    """Inputs that are numbers.

    Raises:
        ValueError: they are not.
    """
    require(
        inputs.dtype.kind in "fiub",
        "inputs are not numbers; turn texts into tokens of one length by a tokenizer",
    )
    return inputs


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


def _require_column(example: Mapping[str, Any], name: str) -> None:
    """Refuse a name that no column has.

    Raises:
        ValueError: there is none.
    """
    require(
        name in example,
        f"there is no column {name!r}; the data set has {', '.join(map(str, example))}",
    )


def _columns(data: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Columns of a data set, of which each example is read once.

    Raises:
        ValueError: a column is missing, or a cell is empty.
    """
    cells: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(len(data)):
        example = data[number]
        for name, values in cells.items():
            _require_column(example, name)
            require(
                example[name] is not None,
                f"example {number} has nothing in the column {name!r}; leave such examples"
                " out, such as by the data set's filter",
            )
            values.append(np.asarray(example[name]))
    return {name: _stacked(values, name) for name, values in cells.items()}


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    # `np.asarray` reads a tensor or an image of PIL; of a list of them it reads none.
    return plain_array([np.asarray(value) for value in values], name)
