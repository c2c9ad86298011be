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
_OLD_FORMAT = "fedtailor personal models 1"  # of fedtailor 0.1: without digests
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
    models = list(personal)
    path = Path(directory)
    for model in models:
        if isinstance(model.predictor, NearestNeighbors) and not own_examples:
            _ = model.theta  # its error says why it is not exported
    try:
        make_new(path)
        write_models(models, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot write models to {path}: {reason(error)}; name another directory"
        ) from None
    return path


def make_new(directory: Path) -> None:
    """Make a directory for models, which may exist if it is empty.

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

    All files are written into a private folder first. The manifest is moved last, for
    it has the digests of the others: models without a manifest are no export.

    Raises:
        ValueError: there are no models.
        OSError: the files cannot be written.
        SafetensorError: likewise.
    """
    models = list(personal)
    require(len(models) > 0, "there are no personal models to export")
    arrays: dict[str, Any] = {}
    clients = {
        model.name: _client(model.predictor, str(row), arrays)
        for row, model in enumerate(models)
    }
    # Models of one federation share the network, the normalisation and the table.
    first = models[0]
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "model": _description(first.model),
        "shift": first.shift,
        "scale": first.scale,
        "clients": clients,
        "arrays": arrays_digest("", arrays),
    }
    files = [MODELS, manifest_name]
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
    # Only without digests, as 0.1 exported, does a changed manifest come this far.
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged: {manifest_name} is not what was exported"
            f" ({reason(error)})"
        ) from None


def _preprocessing(path: Path, manifest: dict[str, Any]) -> Preprocessing | None:
    """The preprocessing that the models were written with."""
    if "preprocessing" not in manifest:
        return None
    file = path / PREPROCESSING
    require(
        file.is_file() and file_digest(file) == manifest["preprocessing"],
        f"{file} is missing or damaged (its digest is wrong); export the models again",
    )
    return Preprocessing.load(file)


def read_manifest(path: Path, manifest_name: str = MANIFEST) -> dict[str, Any]:
    """The manifest of an export.

    Raises:
        ValueError: there is none, or a damaged one.
    """
    try:
        manifest = json.loads((path / manifest_name).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    written_format = manifest.get("format") if isinstance(manifest, dict) else None
    require(
        written_format in (_FORMAT, _OLD_FORMAT),
        f"{path} holds no exported personal models of fedtailor",
    )
    if written_format == _FORMAT:
        require(
            SEAL in manifest and is_sealed(manifest),
            f"{path / manifest_name} is damaged (its digest is wrong); export the"
            " models again",
        )
    return manifest


def _read(
    path: Path, manifest_name: str = MANIFEST
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and arrays of an export, checked against their digests."""
    manifest = read_manifest(path, manifest_name)
    try:
        arrays = load_file(path / MODELS)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    if manifest["format"] == _FORMAT:
        require(
            arrays_digest("", arrays) == manifest.get("arrays"),
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
    """What the manifest says of a client's predictor.

    Args:
        predictor: of the client.
        array: the name of its models in `arrays`; others begin with it.
        arrays: where its arrays are put.

    Returns:
        The entry that `_predictor` reads.
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
    if weights is None:
        return arrays[array]
    return Mixture(weights, arrays[array], entry["logits"])


def _models(
    manifest: dict[str, Any],
    arrays: dict[str, Any],
    preprocessing: Preprocessing | None,
    model: Model | None,
) -> dict[str, PersonalModel]:
    """The personal models of a manifest, by client; `model` as in `load_models`."""
    if model is None:
        model = _rebuilt(manifest["model"])
    shift = _from_json(manifest["shift"])
    scale = _from_json(manifest["scale"])
    require(
        len(manifest["clients"]) > 0,
        "the export names no clients; export the models again",
    )
    models = {}
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
    fields = {}
    for field in dataclasses.fields(architecture):
        value = getattr(architecture, field.name)
        fields[field.name] = value if _is_plain(value) else repr(value)
    loss_names = [name for name, loss in _LOSSES.items() if loss == model.loss]
    return {
        "architecture": type(architecture).__name__,
        "fields": fields,
        "input_shape": list(model.input_shape),
        "outputs": model.outputs,
        "loss": loss_names[0] if loss_names else repr(model.loss),
        "classification": isinstance(model.loss, Classification),
        "dtype": model.dtype,
    }


def _rebuilt(description: dict[str, Any]) -> Model:
    """The model that `_description` described.

    Raises:
        ValueError: its network or its loss is none of fedtailor's.
    """
    # A name of the module may also be one of its functions.
    found = getattr(zoo, description["architecture"], None)
    is_architecture = isinstance(found, type) and issubclass(found, Architecture)
    architecture: Any = found if is_architecture else None
    loss = _LOSSES.get(description["loss"])
    if architecture is None or loss is None:
        what = description["architecture"]
        if loss is None:
            what = f"loss {description['loss']}"
        raise ValueError(
            f"these models use {what}, which only your code knows; pass model=... to"
            " load them"
        )
    fields = {name: _from_json(value) for name, value in description["fields"].items()}
    return architecture(**fields).bind(
        tuple(description["input_shape"]),
        description["outputs"],
        loss=loss,
        dtype=description["dtype"],
    )


def _from_json(value: Any) -> Any:
    """A value as it was before JSON, which has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _is_plain(value: Any) -> bool:
    """Whether JSON gives a value back as it was, but for tuples."""
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
