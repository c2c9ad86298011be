"""Export of personal models.

An export has the files `models.safetensors` (the model vectors), `manifest.json` (all
else that prediction needs) and, if the models were trained on a table,
`preprocessing.json`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedtailor._base.choice import require
from fedtailor._base.digests import has_valid_digest, with_digest
from fedtailor._base.files import (
    file_digest,
    private_folder,
    publish,
    reason,
    remove_leftovers,
)
from fedtailor._base.tensors import read_tensors
from fedtailor.algorithms.find import load_installed_algorithms
from fedtailor.data.federation.storage import arrays_digest
from fedtailor.data.tables import Preprocessing
from fedtailor.engine.storage.frozen_file import FROZEN, read_frozen, write_frozen
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.models import Architecture, Model
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.plain import model_from_plain, plain_model
from fedtailor.protocol import CombinedPredictor, Predictor, state_name
from fedtailor.protocol.plain import parse

MODELS = "models.safetensors"
MANIFEST = "manifest.json"
PREPROCESSING = "preprocessing.json"

_FORMAT = "fedtailor personal models 3"


def export_models(
    personal: Iterable[PersonalModel],
    directory: Path | str,
    *,
    own_examples: bool = False,
) -> Path:
    """Write the personal models of a federation to a new or empty directory.

    If the models were trained on a table, its preprocessing is written as well.

    Args:
        personal: the models.
        directory: the directory, which is created if it does not exist.
        own_examples: also write models that predict with their client's training
            examples (kNN-Per), together with these examples. Such an export must stay
            with the client.

    Returns:
        The directory.

    Raises:
        ValueError: the directory is not empty or cannot be written, there are no
            models, or a model needs its client's examples and `own_examples` is False.

    Example:
        >>> from fedtailor.engine.storage import export_models
        >>> export_models([run.personal(0)], "exported").name
        'exported'
    """
    models = list(personal)
    path = Path(directory)
    for model in models:
        require(
            own_examples or not getattr(model.predictor, "holds_examples", False),
            f"client {model.name!r} predicts with a model and its own examples, which are"
            " not exported; see .predictor",
        )
    try:
        make_new(path)
        write_models(models, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot write models to {path}: {reason(error)}; name another directory"
        ) from None
    return path


def make_new(directory: Path) -> None:
    """Create a directory for models, or accept an empty one.

    Raises:
        ValueError: the directory is not empty.
        OSError: the directory cannot be written.
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
    """Write the personal models of a federation to a folder, which may have other
    files.

    All files are written to a temporary folder first. The manifest, which holds the
    digests of the other files, is moved last. Without it there is no export.

    Raises:
        ValueError: there are no models.
        OSError: the files cannot be written.
        SafetensorError: the files cannot be written.
    """
    models = list(personal)
    require(len(models) > 0, "there are no personal models to export")
    arrays: dict[str, Any] = {}
    clients = {
        model.name: _predictor_to_json(model.predictor, str(index), arrays)
        for index, model in enumerate(models)
    }
    for model in models:
        if model.model.network_index is not None:
            clients[model.name]["network"] = model.model.network_index
    # The models of a federation share their network, normalization and table.
    first = models[0]
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "model": plain_model(first.model),
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
        if write_frozen(first.model, folder):
            manifest["frozen"] = file_digest(folder / FROZEN)
            files.insert(0, FROZEN)
        (folder / manifest_name).write_text(
            json.dumps(with_digest(manifest), indent=2) + "\n", "utf-8"
        )
        for name in files:
            publish(folder / name, path / name)


def load_models(
    directory: Path | str,
    model: Model | Architecture | None = None,
    *,
    manifest_name: str = MANIFEST,
) -> dict[str, PersonalModel]:
    """Read the personal models that `export_models` or `write_models` wrote.

    Args:
        directory: the directory of the models.
        model: the model, or its network, required if that is your own module or function
            instead of one of `fedtailor.models`.
        manifest_name: the file name of the manifest.

    Returns:
        The models by client name.

    Raises:
        ValueError: the directory contains no models, they are damaged, or they require
            `model`.

    Example:
        >>> _ = run.export("models")
        >>> sorted(ft.load_models("models")) == sorted(federation.names)
        True
    """
    path = Path(directory)
    manifest, arrays = _read(path, manifest_name)
    try:
        return _build_models(
            manifest,
            arrays,
            _read_preprocessing(path, manifest),
            model,
            _read_frozen(path, manifest),
        )
    # Its digest is right, and yet it may have been written by something else.
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged: {manifest_name} is not what was exported"
            f" ({reason(error)})"
        ) from None


def _read_preprocessing(path: Path, manifest: dict[str, Any]) -> Preprocessing | None:
    """Read the preprocessing of an export; None if it has none."""
    if "preprocessing" not in manifest:
        return None
    file = path / PREPROCESSING
    require(
        file.is_file() and file_digest(file) == manifest["preprocessing"],
        f"{file} is missing or damaged (its digest is wrong); export the models again",
    )
    return Preprocessing.load(file)


def _read_frozen(path: Path, manifest: dict[str, Any]) -> Sequence[FrozenArrays]:
    """Read the frozen arrays of an export; empty if it has none."""
    if "frozen" not in manifest:
        return ()
    file = path / FROZEN
    require(
        file.is_file() and file_digest(file) == manifest["frozen"],
        f"{file} is missing or damaged (its digest is wrong); export the models again",
    )
    return read_frozen(path)


def read_export_manifest(path: Path, manifest_name: str = MANIFEST) -> dict[str, Any]:
    """Read the manifest of an export, and check its digest.

    Raises:
        ValueError: the manifest is missing or damaged.
    """
    try:
        manifest = json.loads((path / manifest_name).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    file_format = manifest.get("format") if isinstance(manifest, dict) else None
    require(
        file_format == _FORMAT,
        f"{path} holds no personal models that this version of fedtailor can read;"
        " export them again",
    )
    require(
        has_valid_digest(manifest),
        f"{path / manifest_name} is damaged (its digest is wrong); export the models"
        " again",
    )
    # Its digest is right, and yet it may have been written by something else.
    clients = manifest.get("clients")
    require(
        isinstance(clients, dict)
        and all(isinstance(it, dict) and "kind" in it for it in clients.values()),
        f"{path / manifest_name} is damaged: it names no clients with their models",
    )
    return manifest


def _read(
    path: Path, manifest_name: str = MANIFEST
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the manifest and the arrays of an export, and check their digests."""
    manifest = read_export_manifest(path, manifest_name)
    try:
        arrays, _ = read_tensors(path / MODELS)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} holds no exported models, or they are damaged ({reason(error)})"
        ) from None
    require(
        arrays_digest("", arrays) == manifest.get("arrays"),
        f"{path / MODELS} is damaged (its digest is wrong); export the models again",
    )
    return manifest, arrays


def check_export(path: Path) -> int:
    """Check an export.

    Returns:
        The number of clients.

    Raises:
        ValueError: the export is damaged, or there is none.
    """
    manifest, _ = _read(path)
    _read_preprocessing(path, manifest)
    _read_frozen(path, manifest)
    return len(manifest["clients"])


def _predictor_to_json(
    predictor: Predictor, array: str, arrays: dict[str, Any]
) -> dict[str, Any]:
    """Describe a client's predictor for the manifest.

    Args:
        predictor: the predictor.
        array: the name under which its model is stored, or the prefix of the names of
            its arrays.
        arrays: a dict to which its arrays are added.

    Returns:
        A JSON object, which `_predictor_from_json` reads.
    """
    if not isinstance(predictor, CombinedPredictor):
        arrays[array] = np.asarray(predictor)
        return {"kind": "vector", "array": array}
    entry: dict[str, Any] = {
        "kind": predictor.kind,
        "predictor": state_name(type(predictor)),
        "arrays": {},
        "settings": {},
    }
    for field in fields(predictor):  # pyright: ignore[reportArgumentType] (a dataclass)
        value = getattr(predictor, field.name)
        if field.metadata.get("static", False):
            entry["settings"][field.name] = value
        else:
            stored = _store(value, f"{array}.{field.name}", arrays)
            entry["arrays"][field.name] = stored
    return entry


def _store(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Add an array, or the arrays of a dict, to `arrays`.

    Returns:
        The array's name in `arrays`, or a dict of such names.
    """
    if isinstance(value, dict):
        return {
            key: _store(part, f"{name}.{key}", arrays) for key, part in value.items()
        }
    arrays[name] = np.asarray(value)
    return name


def _predictor_from_json(entry: dict[str, Any], arrays: dict[str, Any]) -> Predictor:
    """Build a predictor from the output of `_predictor_to_json`.

    Raises:
        ValueError: it is one of a method that is not loaded here.
    """
    if "predictor" not in entry:
        return arrays[entry["array"]]
    name = entry["predictor"]
    if name not in CombinedPredictor.registry:
        # Importing the methods of installed packages registers their predictors.
        load_installed_algorithms()
    require(
        name in CombinedPredictor.registry,
        f"these models predict with {name}, which is not loaded; import the method's module"
        " first, or install it as a package (entry point fedtailor.algorithms)",
    )
    found = jax.tree.map(lambda stored: arrays[stored], entry["arrays"])
    return CombinedPredictor.registry[name](**found, **entry["settings"])


def _size(predictor: Predictor) -> int:
    """The number of parameters of its models, d."""
    if not isinstance(predictor, CombinedPredictor):
        return predictor.shape[-1]
    theta = getattr(predictor, "models", None)
    return (predictor.model if theta is None else theta).shape[-1]  # pyright: ignore[reportAttributeAccessIssue] (`@predictor` requires one of them)


def _build_models(
    manifest: dict[str, Any],
    arrays: dict[str, Any],
    preprocessing: Preprocessing | None,
    model: Model | Architecture | None,
    frozen: Sequence[FrozenArrays],
) -> dict[str, PersonalModel]:
    """Build the personal models of an export, by client name.

    `model` is as for `load_models`.
    """
    try:
        model = model_from_plain(manifest["model"], model, frozen)
    except ValueError as error:
        raise ValueError(
            f"{error}; pass model=... to load these models (`--model FILE.py:NAME` on"
            " the command line)"
        ) from None
    shift, scale = (
        parse(float | tuple[float, ...], manifest[name], (name,))
        for name in ("shift", "scale")
    )
    require(
        len(manifest["clients"]) > 0,
        "the export names no clients; export the models again",
    )
    models = {}
    for name, entry in manifest["clients"].items():
        predictor = _predictor_from_json(entry, arrays)
        size = _size(predictor)
        require(
            size == model.size,
            f"client {name!r} has {size} parameters, the model {model.size}",
        )
        models[name] = PersonalModel(
            name,
            predictor,
            model.with_network(entry["network"]) if "network" in entry else model,
            shift,
            scale,
            preprocessing,
        )
    return models
