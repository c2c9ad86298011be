"""PyTorch's recurrent layers and attention in JAX."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedtailor.models.pytorch.layout import torch_layout
from fedtailor.models.pytorch.operations import Context, operation
from fedtailor.models.pytorch.randomness import dropout as apply_dropout

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operations that run a recurrent layer over a sequence. Their sixth argument is the rate
of dropout.
"""


@operation(*RECURRENT)
def _recurrent(
    context: Context,
    x: Array,
    state: Any,
    weights: Sequence[Array],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Array, ...]:
    # `weights` holds two matrices, and two biases if there are any, for each direction of
    # each layer.
    kind = context.operation_name
    states = state if kind == "lstm" else (state,)
    x = x.swapaxes(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    arrays = 4 if biases else 2
    final_states: list[tuple[Array, ...]] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            own_weights = weights[index * arrays : (index + 1) * arrays]
            start = tuple(array[index] for array in states)
            final_state, hidden = _scan(
                kind, x, start, own_weights, reverse=direction == 1
            )
            outputs.append(hidden)
            final_states.append(final_state)
        x = jnp.concatenate(outputs, -1)
        if layer < layers - 1:
            x = torch_layout(apply_dropout(context, x, dropout, train))
    x = x.swapaxes(0, 1) if batch_first else x
    return x, *map(jnp.stack, zip(*final_states, strict=True))


def _scan(
    kind: str,
    x: Array,
    start: tuple[Array, ...],
    weights: Sequence[Array],
    reverse: bool,
) -> tuple[tuple[Array, ...], Array]:
    """Run one layer in one direction over a sequence [t, b, inputs].

    Returns:
        The state after the last step, and the hidden states of all steps [t, b,
        hidden].
    """
    input_weight, state_weight = weights[0].T, weights[1].T
    input_bias, state_bias = weights[2:] or (jnp.zeros(()), jnp.zeros(()))

    def step(
        state: tuple[Array, ...], from_input: Array
    ) -> tuple[tuple[Array, ...], Array]:
        state = _next(kind, state, from_input, state[0] @ state_weight + state_bias)
        return state, state[0]

    return lax.scan(step, start, x @ input_weight + input_bias, reverse=reverse)


def _next(
    kind: str, state: tuple[Array, ...], from_input: Array, from_state: Array
) -> tuple[Array, ...]:
    """The state after a step.

    Args:
        kind: the operation of the layer.
        state: hidden state and, of an LSTM, cell.
        from_input: what the layer computes from the input.
        from_state: what it computes from the hidden state.
    """
    if kind.startswith("rnn"):
        activation = jnp.tanh if kind == "rnn_tanh" else jax.nn.relu
        return (activation(from_input + from_state),)
    if kind == "lstm":
        i, f, g, o = jnp.split(from_input + from_state, 4, -1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cell), cell
    # a GRU with PyTorch's gates: reset, update, new
    input_r, input_z, input_n = jnp.split(from_input, 3, -1)
    state_r, state_z, state_n = jnp.split(from_state, 3, -1)
    r = jax.nn.sigmoid(input_r + state_r)
    z = jax.nn.sigmoid(input_z + state_z)
    return ((1 - z) * jnp.tanh(input_n + r * state_n) + z * state[0],)


@operation(*(f"{kind}_cell" for kind in RECURRENT))
def _cell(
    context: Context,
    x: Array,
    state: Any,
    input_weight: Array,
    state_weight: Array,
    input_bias: Array | None = None,
    state_bias: Array | None = None,
) -> Any:
    kind = context.operation_name.removesuffix("_cell")
    states = tuple(state) if kind == "lstm" else (state,)
    from_input, from_state = x @ input_weight.T, states[0] @ state_weight.T
    if input_bias is not None and state_bias is not None:
        from_input, from_state = from_input + input_bias, from_state + state_bias
    states = _next(kind, states, from_input, from_state)
    return states if kind == "lstm" else states[0]


@operation("scaled_dot_product_attention")
def _attention(
    context: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    **kwargs: Any,
) -> Array:
    if enable_gqa:  # several queries share a key
        times = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(array, times, -3) for array in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.swapaxes(-1, -2) * scale
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = (
            jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        )
    # A query that may attend to nothing gets zeros.
    is_blind = jnp.isneginf(scores).all(-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(is_blind, 0, scores), -1)
    weights = jnp.where(is_blind, 0, weights)
    return torch_layout(apply_dropout(context, weights, dropout)) @ value
