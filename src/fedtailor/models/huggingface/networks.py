"""The networks of the library transformers, as functions of their arrays by path.

Each takes the settings of `config.json`, arrays, inputs and the id of padding, and gives
the inputs of the head. Arrays and settings have transformers' names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fedtailor._base.choice import require

Settings = Mapping[str, Any]
Arrays = Mapping[str, Any]


class Noted(dict[str, Any]):
    """A dict that notes which of its keys are read, and in which order."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self.read[key] = None
        return value

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            self.read[key] = None
        return super().get(key, default)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
}
"""Activation functions, by transformers' names."""


def bert(
    settings: Settings, arrays: Arrays, x: Int[Array, "b t"], padding: int | None
) -> Float[Array, "b width"]:
    """BERT (Devlin et al. 2019): what its pooler makes of the first token."""
    eps = settings.get("layer_norm_eps", 1e-12)
    heads = settings["num_attention_heads"]
    activation = _activation(settings, "hidden_act")
    place = "bert.embeddings"
    h = _embedding(arrays, f"{place}.word_embeddings", x)
    h += arrays[f"{place}.position_embeddings.weight"][: x.shape[1]]
    h += arrays[f"{place}.token_type_embeddings.weight"][0]
    h = _layer_norm(arrays, f"{place}.LayerNorm", h, eps)
    allowed = _is_token(x, padding)[:, None, None, :]
    for layer in range(settings["num_hidden_layers"]):
        place = f"bert.encoder.layer.{layer}"
        q, k, v = (
            _split(dense(arrays, f"{place}.attention.self.{name}", h), heads)
            for name in ("query", "key", "value")
        )
        mixed = dense(
            arrays, f"{place}.attention.output.dense", _attention(q, k, v, allowed)
        )
        h = _layer_norm(arrays, f"{place}.attention.output.LayerNorm", h + mixed, eps)
        wide = activation(dense(arrays, f"{place}.intermediate.dense", h))
        narrow = dense(arrays, f"{place}.output.dense", wide)
        h = _layer_norm(arrays, f"{place}.output.LayerNorm", h + narrow, eps)
    return jnp.tanh(dense(arrays, "bert.pooler.dense", h[:, 0]))


def gpt2(
    settings: Settings, arrays: Arrays, x: Int[Array, "b t"], padding: int | None
) -> Float[Array, "b t width"]:
    """GPT-2 (Radford et al. 2019): a vector for each token."""
    eps = settings.get("layer_norm_epsilon", 1e-5)
    activation = _activation(settings, "activation_function", "gelu_new")
    conv1d = partial(dense, arrays, outputs_last=True)  # as transformers calls it
    h = _embedding(arrays, "transformer.wte", x)
    h += arrays["transformer.wpe.weight"][: x.shape[1]]
    allowed = _earlier(x.shape[1]) & _is_token(x, padding)[:, None, None, :]
    for layer in range(settings["n_layer"]):
        place = f"transformer.h.{layer}"
        inputs = _layer_norm(arrays, f"{place}.ln_1", h, eps)
        q, k, v = (
            _split(part, settings["n_head"])
            for part in jnp.split(conv1d(f"{place}.attn.c_attn", inputs), 3, axis=-1)
        )
        h += conv1d(f"{place}.attn.c_proj", _attention(q, k, v, allowed))
        inputs = _layer_norm(arrays, f"{place}.ln_2", h, eps)
        wide = activation(conv1d(f"{place}.mlp.c_fc", inputs))
        h += conv1d(f"{place}.mlp.c_proj", wide)
    return _layer_norm(arrays, "transformer.ln_f", h, eps)


def llama(
    settings: Settings, arrays: Arrays, x: Int[Array, "b t"], padding: int | None
) -> Float[Array, "b t width"]:
    """Llama (Touvron et al. 2023) and its relatives: a vector for each token."""
    eps = settings.get("rms_norm_eps", 1e-6)
    heads = settings["num_attention_heads"]
    groups = settings.get("num_key_value_heads") or heads
    size = settings.get("head_dim") or settings["hidden_size"] // heads
    activation = _activation(settings, "hidden_act", "silu")
    _require_short(settings, x.shape[1])
    h = _embedding(arrays, "model.embed_tokens", x)
    places = np.arange(x.shape[1], dtype=np.float32)
    turns = np.outer(places, _frequencies(settings, size))
    turns = np.concatenate([turns, turns], axis=-1)[:, None, :]
    cos, sin = jnp.asarray(np.cos(turns), h.dtype), jnp.asarray(np.sin(turns), h.dtype)

    def turned(vectors: Array) -> Array:
        first, second = jnp.split(vectors, 2, axis=-1)
        return vectors * cos + jnp.concatenate([-second, first], axis=-1) * sin

    allowed = _earlier(x.shape[1]) & _is_token(x, padding)[:, None, None, :]
    for layer in range(settings["num_hidden_layers"]):
        place = f"model.layers.{layer}"
        inputs = _rms_norm(arrays, f"{place}.input_layernorm", h, eps)
        q, k, v = (
            _split(dense(arrays, f"{place}.self_attn.{name}_proj", inputs), count)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        if f"{place}.self_attn.q_norm.weight" in arrays:
            q = _rms_norm(arrays, f"{place}.self_attn.q_norm", q, eps)
            k = _rms_norm(arrays, f"{place}.self_attn.k_norm", k, eps)
        mixed = _attention(turned(q), turned(k), v, allowed)
        h += dense(arrays, f"{place}.self_attn.o_proj", mixed)
        inputs = _rms_norm(arrays, f"{place}.post_attention_layernorm", h, eps)
        gate = activation(dense(arrays, f"{place}.mlp.gate_proj", inputs))
        up = dense(arrays, f"{place}.mlp.up_proj", inputs)
        h += dense(arrays, f"{place}.mlp.down_proj", gate * up)
    return _rms_norm(arrays, "model.norm", h, eps)


def vit(
    settings: Settings, arrays: Arrays, x: Float[Array, "b ..."], padding: int | None
) -> Float[Array, "b width"]:
    """ViT (Dosovitskiy et al. 2021): the vector of the whole image."""
    eps = settings.get("layer_norm_eps", 1e-12)
    heads = settings["num_attention_heads"]
    activation = _activation(settings, "hidden_act")
    place = "vit.embeddings"
    kernel = arrays[f"{place}.patch_embeddings.projection.weight"]
    h = _patches(_channels_last(settings, x), settings["patch_size"])
    h = h.astype(kernel.dtype) @ kernel.reshape(len(kernel), -1).T
    h += arrays[f"{place}.patch_embeddings.projection.bias"]
    first = arrays[f"{place}.cls_token"]
    first = jnp.broadcast_to(first, (len(x), *first.shape[1:])).astype(h.dtype)
    h = jnp.concatenate([first, h], axis=1) + arrays[f"{place}.position_embeddings"]
    for layer in range(settings["num_hidden_layers"]):
        place = f"vit.layers.{layer}"
        inputs = _layer_norm(arrays, f"{place}.layernorm_before", h, eps)
        q, k, v = (
            _split(dense(arrays, f"{place}.attention.{name}_proj", inputs), heads)
            for name in ("q", "k", "v")
        )
        h += dense(arrays, f"{place}.attention.o_proj", _attention(q, k, v, None))
        inputs = _layer_norm(arrays, f"{place}.layernorm_after", h, eps)
        wide = activation(dense(arrays, f"{place}.mlp.fc1", inputs))
        h += dense(arrays, f"{place}.mlp.fc2", wide)
    return _layer_norm(arrays, "vit.layernorm", h, eps)[:, 0]


@dataclass(frozen=True)
class Kind:
    """What is known of the networks of one `model_type`.

    Attributes:
        features: the network.
        prefix: the first name in the paths of all arrays but those of heads.
        head: of a classification.
        reads: what it reads: "tokens", of which each is a feature ("each"), or images.
        only: settings that must have one of some values, None = it is not there.
        outputs_last: how the paths of weights begin whose last axis are the outputs.
        renamed: (pattern, replacement) of names in files that differ from the paths.
    """

    features: Callable[[Settings, Arrays, Any, int | None], Array]
    prefix: str
    head: str
    reads: str
    only: Mapping[str, tuple[Any, ...]]
    outputs_last: str = ""
    renamed: tuple[tuple[str, str], ...] = ()


_NO = (None, False)
_LLAMA = Kind(llama, "model", "score", "each", {})
KINDS: dict[str, Kind] = {
    "bert": Kind(
        bert,
        "bert",
        "classifier",
        "tokens",
        {"position_embedding_type": (None, "absolute"), "is_decoder": _NO},
        renamed=(
            # Names that the first files had.
            (r"LayerNorm\.gamma$", "LayerNorm.weight"),
            (r"LayerNorm\.beta$", "LayerNorm.bias"),
        ),
    ),
    "gpt2": Kind(
        gpt2,
        "transformer",
        "score",
        "each",
        {
            "scale_attn_by_inverse_layer_idx": _NO,
            "scale_attn_weights": (None, True),
            "add_cross_attention": _NO,
        },
        outputs_last="transformer.h.",
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "vit": Kind(
        vit,
        "vit",
        "classifier",
        "images",
        {},
        # Files have the names of transformers before version 5.
        renamed=(
            (r"^vit\.encoder\.layer\.", "vit.layers."),
            (r"attention\.attention\.query", "attention.q_proj"),
            (r"attention\.attention\.key", "attention.k_proj"),
            (r"attention\.attention\.value", "attention.v_proj"),
            (r"attention\.output\.dense", "attention.o_proj"),
            (r"intermediate\.dense", "mlp.fc1"),
            (r"(layers\.\d+)\.output\.dense", r"\1.mlp.fc2"),
        ),
    ),
}
"""`model_type` of `config.json` -> what is known of its networks."""


# layers
# --------------------------------------------------------------------------------------


def dense(
    arrays: Arrays, path: str, x: Float[Array, "b ... i"], outputs_last: bool = False
) -> Float[Array, "b ... o"]:
    """The outputs of a dense layer, which has a bias or none."""
    weight = arrays[f"{path}.weight"]
    outputs = x @ (weight if outputs_last else weight.T)
    bias = arrays.get(f"{path}.bias")
    return outputs if bias is None else outputs + bias


def _embedding(
    arrays: Arrays, path: str, x: Int[Array, "b t"]
) -> Float[Array, "b t width"]:
    # A token outside the vocabulary is NaN, not another token.
    return arrays[f"{path}.weight"].at[x].get(mode="fill", fill_value=jnp.nan)


def _layer_norm(
    arrays: Arrays, path: str, x: Float[Array, "*b i"], eps: float
) -> Float[Array, "*b i"]:
    h = _wide(x)
    h = h - h.mean(axis=-1, keepdims=True)
    h = h * jax.lax.rsqrt(jnp.square(h).mean(axis=-1, keepdims=True) + eps)
    return h.astype(x.dtype) * arrays[f"{path}.weight"] + arrays[f"{path}.bias"]


def _rms_norm(
    arrays: Arrays, path: str, x: Float[Array, "*b i"], eps: float
) -> Float[Array, "*b i"]:
    h = _wide(x)
    h = h * jax.lax.rsqrt(jnp.square(h).mean(axis=-1, keepdims=True) + eps)
    return h.astype(x.dtype) * arrays[f"{path}.weight"]


def _split(x: Float[Array, "b t i"], heads: int) -> Float[Array, "b t heads e"]:
    return x.reshape(*x.shape[:2], heads, -1)


def _attention(
    q: Float[Array, "b t heads e"],
    k: Float[Array, "b t groups e"],
    v: Float[Array, "b t groups e"],
    allowed: Bool[Array, "#b 1 #t t"] | None,
) -> Float[Array, "b t i"]:
    """Scaled dot products, of which several heads can have one key and value."""
    each = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, each, axis=2), jnp.repeat(v, each, axis=2)
    scores = _wide(jnp.einsum("bqhe,bkhe->bhqk", q, k)) / math.sqrt(q.shape[-1])
    if allowed is not None:
        # No infinity: a row of padding only would be NaN, and so would be gradients.
        scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    shares = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bhqk,bkhe->bqhe", shares, v)
    return mixed.reshape(*mixed.shape[:2], -1)


def _wide(x: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """At least in float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _is_token(x: Int[Array, "b t"], padding: int | None) -> Bool[Array, "b t"]:
    return jnp.ones(x.shape, bool) if padding is None else x != padding


def _earlier(length: int) -> Bool[Array, "1 1 t t"]:
    """Whether a token (column) is one of those up to another (row)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def _activation(
    settings: Settings, name: str, default: str = "gelu"
) -> Callable[[Any], Any]:
    found = settings.get(name) or default
    require(
        found in ACTIVATIONS,
        f"config.json has {name} = {found!r}, and only {', '.join(ACTIVATIONS)} are known;"
        " convert the module by from_torch",
    )
    return ACTIVATIONS[found]


def _frequencies(settings: Settings, size: int) -> Float[np.ndarray, " half"]:
    """By how much a head's pairs of numbers turn from a token to the next one."""
    rope = {
        "rope_theta": settings.get("rope_theta") or 10000.0,
        **(settings.get("rope_scaling") or {}),
        **(settings.get("rope_parameters") or {}),
    }
    # In single precision, as transformers has it.
    places = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    turns = np.float32(1) / np.float32(rope["rope_theta"]) ** places
    kind = rope.get("rope_type") or rope.get("type") or "default"
    is_known = kind in ("default", "linear", "llama3")
    require(
        is_known and (rope.get("partial_rotary_factor") or 1.0) == 1.0,
        f"config.json has positions of the type {kind!r}, and only default, linear and"
        " llama3 over the whole head are known; convert the module by from_torch",
    )
    if kind == "linear":
        return turns / np.float32(rope["factor"])
    if kind == "llama3":
        # Slow turns are slowed down, fast ones are not, and those between in part.
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        periods = rope["original_max_position_embeddings"] * turns / (2 * np.pi)
        kept = np.clip((periods - low) / (high - low), 0.0, 1.0)
        return (turns * (kept + (1 - kept) / rope["factor"])).astype(np.float32)
    return turns


def _require_short(settings: Settings, length: int) -> None:
    """Refuse sequences of which late tokens would not see the first ones."""
    uses = settings.get("use_sliding_window")
    is_used = settings["model_type"] == "mistral" if uses is None else uses
    window = settings.get("sliding_window") if is_used else None
    require(
        window is None or length <= window,
        f"sequences have {length} tokens, and the network's attention reaches {window}"
        " back; give shorter ones",
    )


def _channels_last(
    settings: Settings, x: Shaped[Array, "b ..."]
) -> Shaped[Array, "b h w c"]:
    channels, size = settings.get("num_channels", 3), settings["image_size"]
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1:] == (channels, size, size) and channels != size:
        x = jnp.moveaxis(x, 1, -1)
    require(
        x.shape[1:] == (size, size, channels),
        f"the network takes images of {size}x{size} pixels with {channels} channels, not"
        f" inputs of shape {x.shape[1:]}",
    )
    return x


def _patches(x: Shaped[Array, "b h w c"], size: int) -> Shaped[Array, "b n i"]:
    """The numbers of each square, channel by channel."""
    b, h, w, c = x.shape
    squares = x.reshape(b, h // size, size, w // size, size, c)
    return squares.transpose(0, 1, 3, 5, 2, 4).reshape(b, -1, c * size * size)
