"""What a client does in an exchange: run the algorithm's function for the task, and hand back what it yields."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedtailor.client.private_steps import private_settings
from fedtailor.client.trainer import DeviceTrainer
from fedtailor.protocol import PRIVATE_STEPS, Algorithm, BatchMetric, Inbox, Pipeline, Task, encode

EVALUATED_SPLITS = ("val", "test")


def client_task(
    task: Task,
    algorithm: Algorithm,
    uplink: Pipeline,
    state: Any,
    inbox: Inbox,
    local: DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> dict[str, Any]:
    """One client's part of an exchange (traced).

    Returns:
        "update" (kind -> array), "state", "predictor" or "scores", as the task has it.
    """
    # what leaves a client that trains privately must come from private steps alone
    local.guarded = task in ("probe", "client") and bool(private_settings(algorithm))
    if task == "probe":
        return {"update": algorithm.probe(inbox, local)}
    if task == "client":
        own, of_uplink = state
        new, update = algorithm.client(own, inbox, local)
        update, of_uplink = encode(uplink, update, inbox, of_uplink, local)
        if local.private_steps is not None:
            update = {**update, PRIVATE_STEPS: local.private_steps}
        return {"state": (new, of_uplink), "update": update}
    if task == "init_unseen":
        return {"state": (algorithm.init_unseen(inbox, local), ())}
    predictor = algorithm.personal(state[0], inbox, local)
    if task == "personal":
        return {"predictor": predictor}
    before, local.evaluating = local.work, True
    scores = {
        split: {"count": local.count(split), "statistics": local.statistics(predictor, split, metrics)}
        for split in EVALUATED_SPLITS
    }
    local.work = before  # looking at a model is not work of the method
    return {"scores": scores}


def all_finite(tree: Any) -> Array:
    """Whether every floating-point leaf is finite (one bool)."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.stack(leaves).all() if leaves else jnp.array(True)
