"""Personal models on disk: `models.safetensors` with the vectors, `manifest.json` with all that prediction needs."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedtailor._files import private_folder, publish, reason, remove_leftovers
from fedtailor.models import Architecture, Classification, Model, cross_entropy, squared_error, zoo
from fedtailor.protocol import Mixture, NearestNeighbors, require
from fedtailor.storage.digests import SEAL, arrays_digest, is_sealed, sealed
from fedtailor.training import PersonalModel

MODELS, MANIFEST = "models.safetensors", "manifest.json"

_FORMAT = "fedtailor personal models 2"
_WITHOUT_DIGESTS = "fedtailor personal models 1"  # of fedtailor 0.1
_OF_NEIGHBORS = ("features", "labels", "held", "share", "scale")
_LOSSES: dict[str, Any] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def export_models(personal: Iterable[PersonalModel], directory: Path | str, *, own_examples: bool = False) -> Path:
    """Write personal models of one federation into a directory, which must be new or empty; returns it.

    Args:
        own_examples: write models that predict with their client's own examples, and these with them (kNN-Per): for
            the client's own disk.

    Raises:
        ValueError: the directory holds other files or cannot be written, or there are no models.
    """
    everyone, path = list(personal), Path(directory)
    require(len(everyone) > 0, "there are no personal models to export")
    arrays, clients = {}, {}
    for row, model in enumerate(everyone):
        predictor = model.predictor
        entry = clients[model.name] = {"array": str(row), "mixture": isinstance(predictor, Mixture)}
        if isinstance(predictor, Mixture):
            arrays[str(row)] = np.asarray(predictor.models)
            arrays[f"{row}.weights"] = np.asarray(predictor.weights)
            entry["logits"] = predictor.logits
        elif isinstance(predictor, NearestNeighbors) and own_examples:
            arrays[str(row)] = np.asarray(predictor.model)
            arrays |= {f"{row}.{name}": np.asarray(getattr(predictor, name)) for name in _OF_NEIGHBORS}
            entry |= {"k": predictor.k, "logits": predictor.logits}
        else:
            arrays[str(row)] = model.theta
    first = everyone[0]
    manifest = {
        "format": _FORMAT,
        "model": _description(first.model),
        "shift": first.shift,
        "scale": first.scale,
        "clients": clients,
        "arrays": arrays_digest("", arrays),
    }
    text = json.dumps(sealed(manifest), indent=2)
    try:
        path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        require(not any(path.iterdir()), f"{path} is not empty; name a new directory for the models")
        with private_folder(path, "export") as folder:
            save_file(arrays, folder / MODELS)
            (folder / MANIFEST).write_text(text + "\n", "utf-8")
            for name in (MODELS, MANIFEST):  # the manifest last: without it there is no export
                publish(folder / name, path / name)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot write models to {path}: {reason(error)}; name another directory") from None
    return path


def load_models(directory: Path | str, model: Model | None = None) -> dict[str, PersonalModel]:
    """The personal models that `export_models` wrote, by client name.

    Args:
        directory: where they are.
        model: needed where the network is not one of `fedtailor.models` (a module or function of your own).

    Raises:
        ValueError: the directory holds no models, they are damaged, or they need `model`.
    """
    path = Path(directory)
    manifest, arrays = _read(path)
    try:
        return _models(manifest, arrays, model)
    except (KeyError, TypeError, AttributeError, IndexError) as error:  # of 0.1, which kept no digests
        raise ValueError(f"{path} is damaged: {MANIFEST} is not what was exported ({reason(error)})") from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and arrays of an export, as they were written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        arrays = load_file(path / MODELS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{path} holds no exported models, or they are damaged ({reason(error)})") from None
    made = manifest.get("format") if isinstance(manifest, dict) else None
    require(made in (_FORMAT, _WITHOUT_DIGESTS), f"{path} holds no exported personal models of fedtailor")
    if made == _FORMAT:
        whole = SEAL in manifest and is_sealed(manifest)
        require(whole, f"{path / MANIFEST} is damaged (its digest is wrong); export the models again")
        same = arrays_digest("", arrays) == manifest.get("arrays")
        require(same, f"{path / MODELS} is damaged (its digest is wrong); export the models again")
    return manifest, arrays


def check_export(path: Path) -> tuple[int, bool]:
    """How many clients' models an export holds, and whether it carries digests.

    Raises:
        ValueError: it is damaged, or none.
    """
    manifest, _ = _read(path)
    return len(manifest["clients"]), manifest["format"] == _FORMAT


def _models(manifest: dict[str, Any], arrays: dict[str, Any], model: Model | None) -> dict[str, PersonalModel]:
    model = _rebuilt(manifest["model"]) if model is None else model
    shift, scale = (tuple(part) if isinstance(part, list) else part for part in (manifest["shift"], manifest["scale"]))
    found = {}
    for name, entry in manifest["clients"].items():
        array = arrays[entry["array"]]
        require(
            array.shape[-1] == model.size, f"client {name!r} has {array.shape[-1]} parameters, the model {model.size}"
        )
        found[name] = PersonalModel(name, _predictor(entry, array, arrays), model, shift, scale)
    return found


def _predictor(entry: dict[str, Any], array: Any, arrays: dict[str, Any]) -> Any:
    """What a client predicts with, from its entry in the manifest and the array that this names."""
    row = entry["array"]
    if "k" in entry:
        parts = {name: arrays[f"{row}.{name}"] for name in _OF_NEIGHBORS}
        return NearestNeighbors(array, **parts, k=entry["k"], logits=entry["logits"])
    weights = arrays.get(f"{row}.weights")
    return array if weights is None else Mixture(weights, array, entry["logits"])


def _description(model: Model) -> dict[str, Any]:
    """What `_rebuilt` needs, as JSON values."""
    architecture: Any = model.architecture
    fields = {field.name: getattr(architecture, field.name) for field in dataclasses.fields(architecture)}
    loss = next((name for name, loss in _LOSSES.items() if loss == model.loss), None)
    return {
        "architecture": type(architecture).__name__,
        "fields": {name: value if _is_plain(value) else repr(value) for name, value in fields.items()},
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
        what = description["architecture"] if loss is not None else f"loss {description['loss']}"
        raise ValueError(f"these models use {what}, which only your code knows; pass model=... to load them")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in description["fields"].items()}
    return kind(**values).bind(
        tuple(description["input_shape"]), description["outputs"], loss=loss, dtype=description["dtype"]
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
