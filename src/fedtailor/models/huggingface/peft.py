"""Adapters in folders of the library PEFT: `from_peft` reads them, `save_peft` writes them."""

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save_file

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, reason
from fedtailor.models.huggingface.folder import open_tensors, read_json, values_of
from fedtailor.models.huggingface.transformer import Transformer
from fedtailor.models.low_rank import BASE, A, B, Lora, lora
from fedtailor.models.model import Model

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""How PEFT's names of arrays begin."""
FACTORS = {".lora_A.weight": A, ".lora_B.weight": B}
"""How PEFT's names of factors end -> their names here."""
ONLY = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    "use_dora": (None, False),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
}
"""Settings of an adapter that must have one of some values, None = it is not there."""


def from_peft(network: Transformer, folder: Path | str) -> Lora:
    """A model with an adapter that the library PEFT wrote, from which training starts:

        ft.models.from_peft(ft.models.from_huggingface("gpt2"), "adapter")

    Arrays that PEFT saved as a whole (`modules_to_save`) are trained as a whole.

    Args:
        network: the trained network that the adapter is for.
        folder: with `adapter_config.json` and `adapter_model.safetensors`.

    Returns:
        The architecture, as of `lora`.

    Raises:
        ValueError: the folder cannot be read, or its adapter is of a kind that `lora` does
            not have.
    """
    require(
        isinstance(network, Transformer),
        f"from_peft takes a network of from_huggingface, not {network!r}",
    )
    with values_of(Path(folder) / CONFIG):
        return _adapter_of(network, Path(folder))


def _adapter_of(network: Transformer, folder: Path) -> Lora:
    """See `from_peft`."""
    config = read_json(folder, CONFIG)
    for key, allowed in ONLY.items():
        require(
            config.get(key) in allowed,
            f"{folder / CONFIG} has {key} = {config.get(key)!r}, and only plain LoRA is"
            " read; merge the adapter by PEFT's merge_and_unload, and load what it gives",
        )
    file = open_tensors(folder / FILE)
    start: dict[str, NDArray[Any]] = {}
    adapted, whole = [], set()
    for name in file:
        path = name.removeprefix(PREFIX)
        end = next((end for end in FACTORS if path.endswith(end)), None)
        if end is None:
            require(
                ".lora_" not in path,
                f"{folder / FILE} has {path}, and only adapters of dense layers are read",
            )
            start[path] = file[name]
            whole.add(path.rpartition(".")[0])
            continue
        weight = f"{path.removesuffix(end)}.weight"
        start[f"{weight}.{FACTORS[end]}"] = file[name]
        if FACTORS[end] == A:
            adapted.append(weight)
    require(len(adapted) > 0, f"{folder / FILE} has no factors (lora_A, lora_B)")
    # `rslora` divides by the root of the rank.
    rank, alpha = config["r"], config.get("lora_alpha", 8)
    return lora(
        network,
        rank,
        ",".join(adapted),
        alpha=alpha * math.sqrt(rank) if config.get("use_rslora") else alpha,
        train=",".join(sorted(whole)) or "nothing",
        start=start,
    )


def save_peft(
    model: Model, theta: ArrayLike, folder: Path | str, *, base: str = ""
) -> Path:
    """Write a client's adapter as a folder that PEFT loads:

        own = run.personal("Anna")
        ft.models.save_peft(own.model, own.theta, "adapters/anna", base="gpt2")

        peft.PeftModel.from_pretrained(
            transformers.AutoModelForCausalLM.from_pretrained("gpt2"), "adapters/anna"
        )

    The head of a classification and other arrays that were trained as a whole are written,
    too (`modules_to_save`). Two adapters of a weight become one.

    Args:
        model: of `lora`, around a network of `from_huggingface`.
        theta: its vector [d].
        folder: a new folder.
        base: the name or the folder of the network without an adapter, for PEFT's
            `AutoPeftModel`.

    Raises:
        ValueError: the model is another one, or PEFT has no such adapter.
    """
    network = model.architecture
    require(
        isinstance(network, Lora) and isinstance(network.inner, Transformer),
        "save_peft takes a model of lora around a network of from_huggingface, whose"
        " adapters PEFT knows",
    )
    assert isinstance(network, Lora) and isinstance(network.inner, Transformer)
    inner, parameters = network.inner, model.network(jnp.asarray(theta))
    arrays, targets, rank = {}, [], network.rank + network.local_rank
    dense = _dense_weights(inner)
    for path, (a, b, _) in network.products(parameters).items():
        layer = path.removesuffix(".weight")
        require(
            path in dense,
            f"{path} has an adapter, and PEFT's are written for dense layers only; leave it"
            " out of where",
        )
        # The scale is in B, and small weights have adapters of their full rank.
        missing = rank - len(a)
        targets.append(layer)
        arrays[f"{layer}.lora_A.weight"] = np.pad(_plain(a), ((0, missing), (0, 0)))
        arrays[f"{layer}.lora_B.weight"] = np.pad(_plain(b), ((0, 0), (0, missing)))

    whole = network.base(parameters)
    trained = [path for path, leaf in parameters[BASE].items() if leaf is not None]
    if inner.task == "classification":
        # It need not be in the folder of the network.
        trained.append(f"{inner.head}.weight")
    layers = sorted({path.rpartition(".")[0] for path in trained})
    for layer in layers:
        require(
            not any(
                target == layer or target.startswith(f"{layer}.") for target in targets
            ),
            f"{layer} is trained as a whole, and a layer in it has an adapter; PEFT has"
            " one of both: change where or train",
        )
        for path, array in whole.items():
            if path.startswith(f"{layer}."):
                arrays[path] = _plain(array)
    task = {"classification": "SEQ_CLS", "next-token": "CAUSAL_LM"}[inner.task]
    config = {
        "peft_type": "LORA",
        "task_type": None if inner.kind.reads == "images" else task,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": inner.kind.outputs_last != "",
        "target_modules": targets,
        "modules_to_save": layers or None,
        "inference_mode": True,
    }
    folder = Path(folder)
    require(not folder.exists(), f"{folder} exists already; name another folder")
    try:
        with atomic_write(folder) as temporary:
            temporary.mkdir()
            (temporary / CONFIG).write_text(json.dumps(config, indent=2), "utf-8")
            named = {f"{PREFIX}{path}": array for path, array in arrays.items()}
            save_file(named, temporary / FILE, metadata={"format": "pt"})
    except OSError as error:
        raise ValueError(f"cannot write {folder} ({reason(error)})") from None
    return folder


def _dense_weights(network: Transformer) -> frozenset[str]:
    """The paths of weights of dense layers: matrices that are no embeddings."""
    embeddings = (
        "embeddings.weight",
        "wte.weight",
        "wpe.weight",
        "embed_tokens.weight",
    )
    return frozenset(
        path
        for path, shape in network.shapes
        if len(shape) == 2 and not path.endswith(embeddings)
    ) | {f"{network.head}.weight"}


def _plain(array: Any) -> NDArray[np.float32]:
    return np.asarray(array, np.float32)
