"""What a client does in an exchange: run the algorithm's function for the task, and
hand back what it yields.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from fedtailor.client.private_steps import private_settings
from fedtailor.client.trainer import DeviceTrainer
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    BatchMetric,
    ClientState,
    Inbox,
    Pipeline,
    Task,
    encode,
)

EVALUATED_SPLITS = ("val", "test")

Outputs = dict[str, PyTree]
"""What a client yields, as the task has it: "update" (kind -> array), "state",
"predictor" or "scores".
"""


def client_task(
    task: Task,
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
        uplink: what is applied to its message before it travels.
        state: the algorithm's state and the uplink's, as a pair; () where the task has
            none.
        inbox: what the client was sent.
        local: its data and trainer.
        metrics: what "evaluate" measures.

    Returns:
        What the task has the client yield.
    """
    # what leaves a client that trains privately must come from private steps alone
    local.trace.only_privately = task in ("probe", "client") and bool(
        private_settings(algorithm)
    )
    if task == "probe":
        return {"update": algorithm.probe(inbox, local)}
    if task == "client":
        # The method's part first, then the pipeline on what it would send; both may
        # keep a state.
        algorithm_state, uplink_state = state
        algorithm_state, update = algorithm.client(algorithm_state, inbox, local)
        update, uplink_state = encode(uplink, update, inbox, uplink_state, local)
        # the server must know what to account for; it is no part of the method's
        # message
        if local.trace.private_steps is not None:
            update = {**update, PRIVATE_STEPS: local.trace.private_steps}
        return {"state": (algorithm_state, uplink_state), "update": update}
    if task == "init_unseen":
        return {"state": (algorithm.init_unseen(inbox, local), ())}
    predictor = algorithm.personal(state[0], inbox, local)
    if task == "personal":
        return {"predictor": predictor}
    # From here on test rows may be read, and no work is counted: measuring a model is
    # not work of the method.
    work = local.trace.work
    local.trace.evaluating = True
    scores = {}
    for split in EVALUATED_SPLITS:
        sums = local.statistics(predictor, split, metrics)
        condensed = {
            metric.name: metric.condense(sums[metric.name]) for metric in metrics
        }
        scores[split] = {"count": local.count(split), "statistics": condensed}
    local.trace.work = work
    return {"scores": scores}


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point leaf is finite."""
    floating = [
        leaf
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    finite = [jnp.isfinite(leaf).all() for leaf in floating]
    return jnp.stack(finite).all() if finite else jnp.array(True)
