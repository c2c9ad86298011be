"""A client's part of an exchange: the algorithm's function for the task."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedtailor.engine.client.private_steps import private_settings
from fedtailor.engine.client.trainer import DeviceTrainer
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    BatchMetric,
    ClientState,
    ClientTask,
    Inbox,
    Pipeline,
    Predictor,
    encode,
    noise_of,
)
from fedtailor.protocol.returned import check_client, check_predictor, check_probe

EVALUATION_SPLITS = ("val", "test")

Outputs = dict[str, PyTree]
"""The results of a task: "update" (kind -> array), "state", "predictor" or "scores"."""


def client_task(
    task: ClientTask,
    algorithm: Algorithm,
    uplink: Pipeline,
    state: ClientState,
    inbox: Inbox,
    local: DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> Outputs:
    """One client's part of an exchange (traced).

    Args:
        task: which of the algorithm's functions to run.
        algorithm: the method.
        uplink: the transforms of what the client sends.
        state: the client's states of the algorithm and of the uplink, as a pair; () for
            tasks without states.
        inbox: what the client was sent.
        local: its data and trainer.
        metrics: what "evaluate" measures.

    Returns:
        The results of the task.
    """
    # If a client trains privately, everything that it sends must come from private steps.
    leaves_client = task in ("probe", "client")
    private = private_settings(algorithm)
    local.context.accounted_settings = private
    local.context.private_steps_only = leaves_client and bool(private)
    if task == "probe":
        return {"update": check_probe(algorithm, algorithm.probe(inbox, local))}
    if task == "client":
        before, uplink_state = state
        algorithm_state, update = check_client(
            algorithm, before, algorithm.client(before, inbox, local)
        )
        if noise_of(uplink, by="client") is not None:
            # The client's noise has to hide, too, that training overflowed.
            is_finite = all_finite((algorithm_state, update))
            algorithm_state = jax.tree.map(
                lambda new, old: jnp.where(is_finite, new, old), algorithm_state, before
            )
        update, uplink_state = encode(uplink, update, inbox, uplink_state, local)
        # The server needs this number for its privacy accounting.
        if local.context.private_steps_taken is not None:
            update = {**update, PRIVATE_STEPS: local.context.private_steps_taken}
        return {"state": (algorithm_state, uplink_state), "update": update}
    if task == "init_unseen":
        return {"state": (algorithm.init_unseen(inbox, local), ())}
    predictor = check_predictor(algorithm, algorithm.personal(state[0], inbox, local))
    if task == "personal":
        return {"predictor": predictor}
    return {"scores": _evaluate(predictor, local, metrics)}


def _evaluate(
    predictor: Predictor, local: DeviceTrainer, metrics: tuple[BatchMetric, ...]
) -> dict[str, PyTree]:
    """Measure a predictor on the splits val and test.

    This allows the client to read test rows. The work is not counted, because an
    evaluation is not part of the method.

    Returns:
        For each split a dict: "count", the number of its samples, and "statistics", the
        name of a metric -> its statistic.
    """
    work_before = local.context.work
    local.context.is_evaluating = True
    scores = {}
    for split in EVALUATION_SPLITS:
        statistics = local.statistics(predictor, split, metrics)
        condensed = {
            metric.name: metric.condense(statistics[metric.name]) for metric in metrics
        }
        scores[split] = {"count": local.count(split), "statistics": condensed}
    local.context.work = work_before
    return scores


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point leaf is finite."""
    finite = [
        jnp.isfinite(leaf).all()
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.stack(finite).all() if finite else jnp.array(True)
