"""Who receives which stream."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.protocol import Streams


@pytest.mark.parametrize(
    ("sent", "recipients"),
    [
        (Streams.one_each(jnp.ones((3, 2))), [[0], [1], [2]]),
        (Streams.all_to_all(jnp.ones((2, 2)), clients=3), [[0, 1]] * 3),
        (
            Streams.all_to_all(
                jnp.ones((2, 2)), clients=2, is_sent=np.array([False, True])
            ),
            [[-1, 1]] * 2,
        ),
        (Streams.by_index(jnp.ones((2, 2)), np.array([1, -1, 0])), [[1], [-1], [0]]),
        (Streams.everyone(jnp.ones(2), clients=3), [[0]] * 3),
    ],
    ids=["one each", "all to all", "some to all", "by index", "everyone"],
)
def test_recipients_name_the_streams_of_each_client(
    sent: Streams, recipients: list[list[int]]
) -> None:
    assert sent.recipients.tolist() == recipients
    assert not sent.already_held


def test_everyone_receives_one_stream() -> None:
    """A server that forgets the sum over clients would train all on the first one."""
    with pytest.raises(ValueError, match=r"one stream, and there are 3 \(shape \(3, 2"):
        Streams.everyone(jnp.ones((3, 2)), clients=4)
