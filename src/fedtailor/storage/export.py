"""Personal models on disk: `models.safetensors` with the vectors, `manifest.json` with
all that prediction needs, and `preprocessing.json` where they were trained on a table.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedtailor._files import private_folder, publish, reason, remove_leftovers
from fedtailor.models import (
    Architecture,
    Classification,
    Model,
    cross_entropy,
    squared_error,
    zoo,
)
from fedtailor.protocol import Mixture, NearestNeighbors, Predictor, require
from fedtailor.storage.digests import (
    SEAL,
    arrays_digest,
    file_digest,
    is_sealed,
    sealed,
)
from fedtailor.storage.personal_model import PersonalModel
from fedtailor.tables import Preprocessing

MODELS, MANIFEST, PREPROCESSING = (
    "models.safetensors",
    "manifest.json",
    "preprocessing.json",
)

_FORMAT = "fedtailor personal models 2"
_WITHOUT_DIGESTS = "fedtailor personal models 1"  # of fedtailor 0.1
_NEIGHBORS = ("features", "labels", "held", "share", "scale")
_LOSSES: dict[str, Any] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


def export_models(
    personal: Iterable[PersonalModel],
    directory: Path | str,
    *,
    own_examples: bool = False,
) -> Path:
    """Write personal models of one federation into a directory, which must be new or
    empty; returns it.

    Models that were trained on a table take its preprocessing with them.

    Args:
        own_examples: write models that predict with their client's own examples, and
            these with them (kNN-Per): for the client's own disk.

    Raises:
        ValueError: the directory holds other files or cannot be written, there are no
            models, or a client predicts with its own examples and `own_examples` is
            False.
    """
    everyone, path = list(personal), Path(directory)
    for model in everyone:
        if isinstance(model.predictor, NearestNeighbors) and not own_examples:
            _ = model.theta  # its error says why it is not exported
    try:
        make_new(path)
        write_models(everyone, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot write models to {path}: {reason(error)}; name another directory"
        ) from None
    return path


def make_new(directory: Path) -> None:
    """Make a directory for models; an empty one is as good as a new one.

    Raises:
        ValueError: it holds files.
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    require(
        not any(directory.iterdir()),
        f"{directory} is not empty; name a new directory for the models",
    )


def write_models(
    personal: Iterable[PersonalModel], path: Path, manifest_name: str = MANIFEST
) -> None:
    """Write personal models of one federation into a folder that may hold other files.

    Raises:
        ValueError: there are no models.
        OSError: the files cannot be written.
        SafetensorError: likewise.
    """
    everyone = list(personal)
    require(len(everyone) > 0, "there are no personal models to export")
    arrays: dict[str, Any] = {}
    clients = {
        model.name: _client(model.predictor, str(row), arrays)
        for row, model in enumerate(everyone)
    }
    first = everyone[0]
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "model": _description(first.model),
        "shift": first.shift,
        "scale": first.scale,
        "clients": clients,
        "arrays": arrays_digest("", arrays),
    }
    files = [MODELS, manifest_name]  # the manifest last: without it there is no export
    with private_folder(path, "export") as folder:
        save_file(arrays, folder / MODELS)
        if first.preprocessing is not None:
            manifest["preprocessing"] = file_digest(
                first.preprocessing.save(folder / PREPROCESSING)
            )
            files.insert(0, PREPROCESSING)
        (folder / manifest_name).write_text(
            json.dumps(sealed(manifest), indent=2) + "\n", "utf-8"
        )
        for name in files:
            publish(folder / name, path / name)


def load_models(
    directory: Path | str, model: Model | None = None, *, manifest_name: str = MANIFEST
) -> dict[str, PersonalModel]:
    """The personal models that `export_models` wrote, by client name.

    Args:
        directory: where they are.
        model: needed where the network is not one of `fedtailor.models` (a module or
            function of your own).
        manifest_name: as they were written (`write_models`).

    Raises:
        ValueError: the directory holds no models, they are damaged, or they need
            `model`.
    """
    path = Path(directory)
    manifest, arrays = _read(path, manifest_name)
    try:
        return _models(manifest, arrays, _preprocessing(path, manifest), model)
    except (
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
    ) as error:  # of 0.1, which kept no digests
        raise ValueError(
            f"{path} is damaged: {manifest_name} is not what was exported"
            f" ({reason(error)})"
        ) from None


def _preprocessing(path: Path, manifest: dict[str, Any]) -> Preprocessing | None:
    """The preprocessing that the models were written with."""
    if "preprocessing" not in manifest:
        return None
    file = path / PREPROCESSING
    same = file.is_file() and file_digest(file) == manifest["preprocessing"]
    require(
        same,
        f"{file} is missing or damaged (its digest is wrong); export the models again",
    )
    return Preprocessing.load(file)


def read_manifest(path: Path, manifest_name: str = MANIFEST) -> dict[str, Any]:
    """What an export says of its models.

    Raises:
        ValueError: there is none, or a damaged one.
    """
    try:
        manifest = json.loads((path / manifest_name).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    made = manifest.get("format") if isinstance(manifest, dict) else None
    require(
        made in (_FORMAT, _WITHOUT_DIGESTS),
        f"{path} holds no exported personal models of fedtailor",
    )
    if made == _FORMAT:
        whole = SEAL in manifest and is_sealed(manifest)
        require(
            whole,
            f"{path / manifest_name} is damaged (its digest is wrong); export the"
            " models again",
        )
    return manifest


def _read(
    path: Path, manifest_name: str = MANIFEST
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and arrays of an export, as they were written."""
    manifest = read_manifest(path, manifest_name)
    try:
        arrays = load_file(path / MODELS)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    if manifest["format"] == _FORMAT:
        same = arrays_digest("", arrays) == manifest.get("arrays")
        require(
            same,
            f"{path / MODELS} is damaged (its digest is wrong); export the models"
            " again",
        )
    return manifest, arrays


def check_export(path: Path) -> tuple[int, bool]:
    """How many clients' models an export holds, and whether it carries digests.

    Raises:
        ValueError: it is damaged, or none.
    """
    manifest, _ = _read(path)
    _preprocessing(path, manifest)
    return len(manifest["clients"]), manifest["format"] == _FORMAT


def _client(predictor: Predictor, array: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of a client's predictor, whose arrays go into `arrays`
    under names that begin so.
    """
    if isinstance(predictor, Mixture):
        arrays[array] = np.asarray(predictor.models)
        arrays[f"{array}.weights"] = np.asarray(predictor.weights)
        return {"array": array, "mixture": True, "logits": predictor.logits}
    if isinstance(predictor, NearestNeighbors):
        arrays[array] = np.asarray(predictor.model)
        arrays |= {
            f"{array}.{name}": np.asarray(getattr(predictor, name))
            for name in _NEIGHBORS
        }
        return {
            "array": array,
            "mixture": False,
            "logits": predictor.logits,
            "neighbors": predictor.k,
        }
    arrays[array] = np.asarray(predictor)
    return {"array": array, "mixture": False}


def _predictor(entry: dict[str, Any], arrays: dict[str, Any]) -> Predictor:
    """What `_client` described."""
    array = entry["array"]
    if "neighbors" in entry:
        rest = {name: arrays[f"{array}.{name}"] for name in _NEIGHBORS}
        return NearestNeighbors(
            arrays[array], **rest, k=entry["neighbors"], logits=entry["logits"]
        )
    weights = arrays.get(f"{array}.weights")
    return (
        arrays[array]
        if weights is None
        else Mixture(weights, arrays[array], entry["logits"])
    )


def _models(
    manifest: dict[str, Any],
    arrays: dict[str, Any],
    preprocessing: Preprocessing | None,
    model: Model | None,
) -> dict[str, PersonalModel]:
    model = _rebuilt(manifest["model"]) if model is None else model
    shift, scale = (
        tuple(part) if isinstance(part, list) else part
        for part in (manifest["shift"], manifest["scale"])
    )
    models = {}
    require(
        len(manifest["clients"]) > 0,
        "the export names no clients; export the models again",
    )
    for name, entry in manifest["clients"].items():
        size = arrays[entry["array"]].shape[-1]
        require(
            size == model.size,
            f"client {name!r} has {size} parameters, the model {model.size}",
        )
        models[name] = PersonalModel(
            name, _predictor(entry, arrays), model, shift, scale, preprocessing
        )
    return models


def _description(model: Model) -> dict[str, Any]:
    """What `_rebuilt` needs, as JSON values."""
    architecture: Any = model.architecture
    fields = {
        field.name: getattr(architecture, field.name)
        for field in dataclasses.fields(architecture)
    }
    loss = next((name for name, loss in _LOSSES.items() if loss == model.loss), None)
    return {
        "architecture": type(architecture).__name__,
        "fields": {
            name: value if _is_plain(value) else repr(value)
            for name, value in fields.items()
        },
        "input_shape": list(model.input_shape),
        "outputs": model.outputs,
        "loss": loss or repr(model.loss),
        "classification": isinstance(model.loss, Classification),
        "dtype": model.dtype,
    }


def _rebuilt(description: dict[str, Any]) -> Model:
    kind = getattr(zoo, description["architecture"], None)
    loss = _LOSSES.get(description["loss"])
    if not (isinstance(kind, type) and issubclass(kind, Architecture)) or loss is None:
        what = (
            description["architecture"]
            if loss is not None
            else f"loss {description['loss']}"
        )
        raise ValueError(
            f"these models use {what}, which only your code knows; pass model=... to"
            " load them"
        )
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in description["fields"].items()
    }
    return kind(**values).bind(
        tuple(description["input_shape"]),
        description["outputs"],
        loss=loss,
        dtype=description["dtype"],
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
