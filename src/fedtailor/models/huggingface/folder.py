"""`from_huggingface`: a folder of the library transformers as a model."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedtailor._base.choice import require
from fedtailor._base.files import reason
from fedtailor._base.tensors import TensorFile, aligned
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.huggingface.networks import KINDS, Kind, Noted
from fedtailor.models.huggingface.transformer import (
    LM_HEAD,
    TaskName,
    Transformer,
    head_shapes,
)
from fedtailor.models.registry import register

CONFIG = "config.json"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@register
def from_huggingface(
    folder: str | Path,
    *,
    task: TaskName | None = None,
    weights: Literal["float32", "bfloat16"] | None = None,
    padding: int | None = None,
    new_head: bool = False,
) -> Transformer:
    """A folder that `save_pretrained` of the library transformers wrote, or that was
    downloaded from the hub, as a model with its trained weights; for example

        base = ft.models.from_huggingface("bert-base-uncased")
        adapted = ft.models.lora(base, 8, "re:(query|value).weight$", train="head")

    BERT, GPT-2, Llama, Mistral, Qwen2, Qwen3 and ViT are known. Outputs equal those of
    transformers in evaluation mode; there is no dropout. Arrays have transformers' paths.
    transformers is not needed, and nothing is downloaded.

    Args:
        folder: with `config.json`, and `model.safetensors` or its parts and their index.
        task: "classification" (of a text or an image), or "next-token", whose outputs
            [b, t, vocabulary] are scores of the token after each one; None = the folder's.
        weights: the type in which weights are kept; None = the folder's.
        padding: the id of padding in the data, which no other token sees; None = the
            folder's, of its tokenizer or network. Inputs are token ids alone: masks follow
            from it.
        new_head: begin with a new head for other classes, and not with the folder's.

    Returns:
        The architecture, to `bind` or to pass to `run`, `lora` or `frozen`.

    Raises:
        ValueError: the folder cannot be read, or its network is not known.
    """
    with values_of(Path(folder) / CONFIG):
        return _network_of(Path(folder), task, weights, padding, new_head)


@contextmanager
def values_of(file: Path) -> Iterator[None]:
    """Says in a line that a file of somebody else's holds values of another kind.

    Raises:
        ValueError: something failed by them.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{file} is damaged: it has a value of another kind than its library writes"
            f" ({type(error).__name__}: {reason(error)})"
        ) from None


def _network_of(
    place: Path,
    task: TaskName | None,
    weights: Literal["float32", "bfloat16"] | None,
    padding: int | None,
    new_head: bool,
) -> Transformer:
    """See `from_huggingface`."""
    config = read_json(place, CONFIG)
    kind = _kind_of(config)
    found = _Folder(place, kind, weights)
    names = [str(name) for name in config.get("architectures") or ()]
    if task is None:
        is_next = any(name.endswith(("LMHeadModel", "ForCausalLM")) for name in names)
        task = "next-token" if is_next else "classification"
    require(
        task == "classification" or kind.reads == "each",
        f"{config['model_type']} predicts no next token; task='classification' does",
    )
    if padding is None and kind.reads != "images":
        padding = _padding_of(place, config)
    _check_padding(config, kind, task, padding)

    classes = 0
    head = f"{kind.head}.weight"
    if task == "classification" and head in found and not new_head:
        classes = found.shapes[head][0]
    settings, paths = _used(config, kind, found, padding)
    if task == "next-token":
        is_tied = config.get("tie_word_embeddings", f"{LM_HEAD}.weight" not in found)
        own = f"{LM_HEAD}.weight"
        if not is_tied:
            require(own in found, f"{place} has no array {own!r}; {_elsewhere(names)}")
            paths.append(own)
    shapes = tuple((path, found.shapes[path]) for path in sorted(paths))
    if classes:
        paths += head_shapes(kind, config, classes)
    return Transformer(
        json.dumps(settings, sort_keys=True),
        task,
        padding,
        shapes,
        classes,
        FrozenArrays(_Selected(found, paths)),
    )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a folder.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        read = json.loads((folder / name).read_text("utf-8"))
    except OSError as error:
        raise ValueError(
            f"cannot read {folder / name} ({reason(error)}); name a folder that"
            " save_pretrained wrote"
        ) from None
    except ValueError:
        raise ValueError(f"{folder / name} is not JSON; write it again") from None
    require(
        isinstance(read, dict), f"{folder / name} is no JSON object; write it again"
    )
    return read


def open_tensors(path: Path) -> TensorFile:
    """A safetensors file of a folder.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return TensorFile(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {path} ({error})") from None


def _kind_of(config: Mapping[str, Any]) -> Kind:
    """What is known of a folder's network.

    Raises:
        ValueError: it is another network, or one with other settings.
    """
    name = config.get("model_type")
    advice = "convert the module of transformers by from_torch"
    require(
        name in KINDS,
        f"config.json has model_type = {name!r}, and only {', '.join(KINDS)} are known;"
        f" {advice}",
    )
    require(
        not config.get("quantization_config"),
        f"config.json has quantized weights, which are not read; {advice}",
    )
    kind = KINDS[str(name)]
    for key, allowed in kind.only.items():
        value = config.get(key)
        require(
            value in allowed,
            f"config.json has {key} = {value!r}, which is not known; {advice}",
        )
    return kind


def _padding_of(folder: Path, config: Mapping[str, Any]) -> int | None:
    """The id of padding of the folder's tokenizer, or of its network.

    Raises:
        ValueError: they differ.
    """
    network, tokenizer = config.get("pad_token_id"), None
    files = "tokenizer_config.json", "tokenizer.json"
    if all((folder / name).is_file() for name in files):
        settings, tokens = (read_json(folder, name) for name in files)
        token = settings.get("pad_token")
        content = token.get("content") if isinstance(token, dict) else token
        for added in tokens.get("added_tokens") or ():
            if added.get("content") == content:
                tokenizer = added.get("id")
    require(
        network is None or tokenizer in (None, network),
        f"config.json pads with the token {network}, and the folder's tokenizer with"
        f" {tokenizer}; give the one of your data as padding",
    )
    return network if tokenizer is None else tokenizer


def _check_padding(
    config: Mapping[str, Any], kind: Kind, task: TaskName, padding: int | None
) -> None:
    size = config.get("vocab_size", 0)
    require(
        padding is None or 0 <= padding < size,
        f"padding is {padding}, and the network's tokens are 0 to {size - 1}; give the"
        " tokenizer's pad_token_id",
    )
    require(
        task == "next-token" or kind.reads != "each" or padding is not None,
        f"{config['model_type']} classifies by the last token, and config.json has no"
        " pad_token_id; give padding=tokenizer.pad_token_id",
    )


def _used(
    config: Mapping[str, Any], kind: Kind, found: "_Folder", padding: int | None
) -> tuple[dict[str, Any], list[str]]:
    """The settings and the arrays that a network reads, by running it on shapes.

    Raises:
        ValueError: an array is missing, or they do not fit together.
    """
    settings = Noted(config)
    arrays: set[str] = set()
    size = config.get("image_size", 1)
    is_image = kind.reads == "images"
    shape = (1, size, size, config.get("num_channels", 3)) if is_image else (1, 1)

    def run(values: Mapping[str, Array], x: Array) -> Array:
        noted = Noted(values)
        outputs = kind.features(settings, noted, x, padding)
        arrays.update(noted.read)
        return outputs

    shapes = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32)
        for path, shape in found.shapes.items()
    }
    x = jax.ShapeDtypeStruct(shape, jnp.float32 if is_image else jnp.int32)
    try:
        jax.eval_shape(run, shapes, x)
    except KeyError as error:
        missing = error.args[0]
        where = CONFIG if missing not in settings and "." not in missing else FILE
        raise ValueError(
            f"{found.folder / where} has no {missing!r};"
            f" {_elsewhere(config.get('architectures') or ())}"
        ) from None
    except TypeError as error:
        raise ValueError(
            f"the arrays of {found.folder} do not fit its config.json"
            f" ({str(error).partition(chr(10))[0]}); write both again"
        ) from None
    kept = {
        "model_type",
        "vocab_size",
        "hidden_size",
        "n_embd",
        "n_positions",
        "max_position_embeddings",
        "initializer_range",
    }
    return (
        {key: config[key] for key in config if key in kept or key in settings.read},
        sorted(arrays),
    )


def _elsewhere(names: Any) -> str:
    return f"it is of {' and '.join(map(str, names)) or 'an unknown class'}"


class _Folder(Mapping[str, NDArray[Any]]):
    """The arrays of a folder by path, each of which is read when it is asked for."""

    def __init__(self, folder: Path, kind: Kind, weights: str | None) -> None:
        """Open the files.

        Raises:
            ValueError: there are none, or they cannot be read.
        """
        self.folder, self._weights = folder, weights
        self._places: dict[str, tuple[TensorFile, str]] = {}
        for name in _files(folder):
            file = open_tensors(folder / name)
            for key in file:
                self._places[_renamed(key, kind)] = file, key
        # The file of a network without a head leaves the first name out.
        if not any(path.startswith(f"{kind.prefix}.") for path in self._places):
            self._places = {
                f"{kind.prefix}.{path}": place for path, place in self._places.items()
            }
            self._places = {
                _renamed(path, kind): place for path, place in self._places.items()
            }
        self.shapes = {
            path: file.shape(key) for path, (file, key) in self._places.items()
        }

    def __getitem__(self, path: str) -> NDArray[Any]:
        file, key = self._places[path]
        if self._weights is None:
            return file[key]
        # In pieces, so that no array is there in both types.
        shape = self.shapes[path]
        dtype = np.dtype(jnp.bfloat16 if self._weights == "bfloat16" else np.float32)
        array = aligned(shape, dtype)
        if not shape:
            array[...] = file[key]
            return array
        step = max(1, PIECE // max(1, array.nbytes // max(1, len(array))))
        for start in range(0, len(array), step):
            rows = np.arange(start, min(start + step, len(array)))
            array[start : start + step] = file.rows(key, rows)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


PIECE = 1 << 18
"""Bytes that are converted at a time."""


class _Selected(Mapping[str, NDArray[Any]]):
    """Some of the arrays of a folder."""

    def __init__(self, found: _Folder, paths: list[str]) -> None:
        self._found, self._paths = found, paths

    def __getitem__(self, path: str) -> NDArray[Any]:
        return self._found[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _files(folder: Path) -> list[str]:
    """The names of the files of arrays.

    Raises:
        ValueError: there are none.
    """
    if (folder / INDEX).is_file():
        index = read_json(folder, INDEX).get("weight_map")
        require(
            isinstance(index, dict) and len(index) > 0,
            f"{folder / INDEX} has no weight_map; write it again",
        )
        assert isinstance(index, dict)
        files = sorted({str(name) for name in index.values()})
        for name in files:
            require(
                Path(name).name == name,
                f"{folder / INDEX} names {name!r}, which is not in its folder",
            )
            require(
                (folder / name).is_file(),
                f"{folder} has no {name}, which {INDEX} names; fetch all files",
            )
        return files
    others = sorted(each.name for each in folder.glob("*.bin"))
    advice = (
        f"it has {others[0]}: save_pretrained of transformers writes safetensors"
        if others
        else "save_pretrained of transformers writes it"
    )
    require((folder / FILE).is_file(), f"{folder} has no {FILE}; {advice}")
    return [FILE]


def _renamed(name: str, kind: Kind) -> str:
    """The path of an array of a file."""
    for pattern, new in kind.renamed:
        name = re.sub(pattern, new, name)
    return name
