"""Rounds in which no client reports, with transforms that add noise in every round."""

from typing import Any

from fedtailor.aggregation.pipelines.gaussian_noise import zero_update
from fedtailor.protocol import Algorithm, Answers, Cohort, Pipeline


def aggregate_noise(
    algorithm: Algorithm,
    server: Any,
    uplink: Pipeline,
    uplink_state: list[Any],
    cohort: Cohort,
) -> tuple[Any, list[Any]]:
    """Aggregate the noise of a round in which no client reports.

    The accounting of noise assumes that it is added in every round. So the server
    aggregates the update of a client that did not train. Its change is zero, so what the
    transforms that ask for it (`runs_without_reporters`) return is the noise alone.

    Args:
        algorithm: the method.
        server: the server's state.
        uplink: the transforms.
        uplink_state: the server's state of each.
        cohort: one client; any will do, as none of its data is used.

    Returns:
        The server's next state, and the next state of each transform.
    """
    downlink = algorithm.broadcast(server, cohort)
    update = zero_update(downlink)
    next_states = []
    for transform, state in zip(uplink, uplink_state, strict=True):
        next_state = state
        if transform.runs_without_reporters:
            update, next_state = transform.decode(update, downlink, cohort, state)
        next_states.append(next_state)
    answers = Answers(reporting=cohort.reporting, update=update)
    return algorithm.server(server, downlink, answers, cohort), next_states
