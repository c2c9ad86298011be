"""`Transformer`: a network of the library transformers as an architecture."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor._base.choice import require
from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.frozen_network import with_start
from fedtailor.models.huggingface.networks import KINDS, Kind, Noted, dense
from fedtailor.models.part_finder import LayerInfo

TaskName = Literal["classification", "next-token"]
"""What a network is for: a class for each input, or for each token the next one."""

LM_HEAD = "lm_head"
"""The head of the next token, if it is not the embedding."""


@dataclass(frozen=True)
class Transformer(Architecture):
    """The architecture of `from_huggingface`. Its network is a dict of arrays by the paths
    that they have in transformers.

    Attributes:
        config: the settings of `config.json` that the network depends on, as JSON.
        task: what it is for.
        padding: the id of padding, which no other token sees; None = there is none.
        shapes: (path, shape) of each array but those of the head of a classification.
        classes: the classes of the trained head; 0 = it is new.
        trained: the arrays that it begins with; None if they are elsewhere (`Lora.given`).
    """

    config: str
    task: TaskName
    padding: int | None
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    classes: int = 0
    trained: FrozenArrays | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the network depends on."""
        return _settings(self.config)

    @property
    def kind(self) -> Kind:
        """What is known of networks of this `model_type`."""
        return KINDS[self.settings["model_type"]]

    @property
    def known_tokens(self) -> int | None:
        return None if self.kind.reads == "images" else self.settings["vocab_size"]

    @property
    def outputs_last(self) -> tuple[str, ...]:
        start = self.kind.outputs_last
        return tuple(
            path for path, _ in self.shapes if start and path.startswith(start)
        )

    @property
    def held(self) -> tuple[FrozenArrays, ...]:
        return () if self.trained is None else (self.trained,)

    def without_trained(self) -> Architecture:
        return replace(self, trained=None)

    @property
    def head(self) -> str | None:
        """The path of the head; None if it is the embedding."""
        if self.task == "classification":
            return self.kind.head
        is_own = any(path.startswith(f"{LM_HEAD}.") for path, _ in self.shapes)
        return LM_HEAD if is_own else None

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        self._check(input_shape, outputs)
        shapes = dict(self.shapes)
        if self.task == "classification":
            shapes |= head_shapes(self.kind, self.settings, outputs)
        deviation = self.settings.get("initializer_range", 0.02)
        network = {}
        for index, (path, shape) in enumerate(sorted(shapes.items())):
            if len(shape) > 1:
                own_key = jax.random.fold_in(key, index)
                network[path] = deviation * jax.random.normal(own_key, shape)
            else:
                network[path] = jnp.full(shape, float(path.endswith("weight")))
        return with_start(network, self.trained)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b ..."]:
        return self._outputs(network, self._features(network, x))

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        input_dtype = "float32" if self.kind.reads == "images" else "int32"
        read: dict[str, None] = {}

        def note(arrays: Network, x: Array) -> Array:
            noted = Noted(arrays)
            outputs = self.apply(noted, x, None)
            read.update(noted.read)
            return outputs

        x = jax.ShapeDtypeStruct((1, *input_shape), input_dtype)
        jax.eval_shape(note, network, x)
        order = tuple(dict.fromkeys(path.rpartition(".")[0] for path in read))
        norms = tuple(path for path in order if _is_norm(path))
        return LayerInfo(self.head, norms, order, input_dtype)

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        return self._features(network, x)

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b ..."]:
        return self._outputs(network, features)

    def _features(
        self, network: Network, x: Shaped[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        is_image = self.kind.reads == "images"
        require(
            is_image or jnp.issubdtype(x.dtype, jnp.integer),
            f"the network takes token ids (int32), not inputs of type {x.dtype}",
        )
        vectors = self.kind.features(self.settings, network, x, self.padding)
        if self.kind.reads != "each" or self.task == "next-token":
            return vectors
        # A decoder's last token has seen all others.
        places = jnp.arange(x.shape[1]) * (x != self.padding)
        return vectors[jnp.arange(len(x)), places.argmax(axis=1)]

    def _outputs(
        self, network: Network, features: Float[Array, "b ..."]
    ) -> Float[Array, "b ..."]:
        if self.head is None:
            return features @ network[f"{embedding_path(self.kind)}.weight"].T
        return dense(network, self.head, features)

    def _check(self, input_shape: tuple[int, ...], outputs: int) -> None:
        """Refuse data that the network is not for.

        Raises:
            ValueError: with what to do instead.
        """
        if self.kind.reads != "images":
            require(
                len(input_shape) == 1,
                "the network takes token ids of shape [length], not inputs of shape"
                f" {input_shape}; leave masks out, as padding is known by its id",
            )
            settings = self.settings
            longest = settings.get("n_positions") or settings["max_position_embeddings"]
            require(
                input_shape[0] <= longest,
                f"sequences have {input_shape[0]} tokens, and the network has positions for"
                f" {longest}; truncate them",
            )
        if self.task == "next-token":
            require(
                outputs == self.known_tokens,
                f"the network predicts {self.known_tokens} tokens, and the data have"
                f" {outputs} classes: pass classes={self.known_tokens}, or load the network"
                " with task='classification'",
            )
        else:
            require(
                self.classes in (0, outputs),
                f"the folder's head is for {self.classes} classes, and the data have"
                f" {outputs}; new_head=True begins with a new one",
            )


def embedding_path(kind: Kind) -> str:
    """The path of the embedding of a decoder's tokens."""
    return f"{kind.prefix}.{'wte' if kind.prefix == 'transformer' else 'embed_tokens'}"


def head_shapes(
    kind: Kind, settings: Mapping[str, Any], outputs: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of the head of a classification, by path."""
    width = settings.get("n_embd") or settings["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {f"{kind.head}.weight": (outputs, width)}
    if kind.reads != "each":
        shapes[f"{kind.head}.bias"] = (outputs,)
    return shapes


def _is_norm(path: str) -> bool:
    """Whether transformers calls a layer so that it is a normalisation."""
    name = path.rpartition(".")[2].lower()
    return "norm" in name or name.startswith("ln_")


@lru_cache
def _settings(config: str) -> Mapping[str, Any]:
    return json.loads(config)
