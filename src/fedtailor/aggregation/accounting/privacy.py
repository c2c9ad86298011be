"""Epsilon of differential privacy, computed by the package `dp-accounting`.

By its accountant of Rényi differential privacy (Mironov 2017), over whole orders. Needs
the extra `privacy`.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from fedtailor._base.choice import require

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Orders of the Rényi divergence; the order with the smallest epsilon is used.

Orders below 2 would matter for a very large epsilon only.
"""


def max_private_batch(batch_size: int) -> int:
    """The capacity of the batches of private steps, which draw `batch_size` examples in
    expectation.

    Returns:
        A size that a draw exceeds less than once in 10^12 steps (Poisson's upper tail).
    """
    return batch_size + 8 * math.ceil(math.sqrt(batch_size)) + 8


def require_accountant() -> Any:
    """The package `dp_accounting`.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise ValueError(
            "privacy is accounted by dp-accounting: pip install 'fedtailor[privacy]'"
        ) from None
    return dp_accounting


@cache
def sampled_gaussian_epsilon(
    multiplier: float, probability: float, steps: int, delta: float
) -> float:
    """Epsilon of noisy sums over random samples of units (clients or examples).

    Each sum takes each unit with the same probability, independently.

    Args:
        multiplier: the standard deviation of the noise, divided by the largest norm that
            a unit adds to a sum.
        probability: the probability with which a unit takes part in a sum; 1 = always.
        steps: the number of sums.
        delta: probability that the guarantee may fail.

    Returns:
        Epsilon, for adding or removing one unit; 0 if nothing was published.
    """
    return composed_epsilon([(multiplier, probability, steps)], delta)


def composed_epsilon(sums: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of noisy sums of several kinds together.

    Args:
        sums: for each kind its multiplier, probability and number of sums, as
            `sampled_gaussian_epsilon` takes them.
        delta: probability that the guarantee may fail.
    """
    published = [kind for kind in sums if kind[2] > 0]
    if not published:
        return 0.0
    library = require_accountant()
    # Composition adds Rényi divergences up.
    accountant = library.rdp.RdpAccountant(ORDERS)
    for multiplier, probability, steps in published:
        event = library.GaussianDpEvent(multiplier)
        # Sampling amplifies the privacy of a sum.
        if probability < 1:
            event = library.PoissonSampledDpEvent(probability, event)
        accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise with which one noisy sum has this epsilon.

    Args:
        epsilon: for adding or removing one unit.
        delta: probability that the guarantee may fail.

    Returns:
        The standard deviation of the noise, divided by the largest norm that a unit adds
        to the sum; to 1 %, rounded up.
    """
    low, high = 1e-3, 1e6
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        if composed_epsilon([(middle, 1.0, 1)], delta) <= epsilon:
            high = middle
        else:
            low = middle
    return high


@cache
def sgd_epsilon(
    multiplier: float, batch_size: int, examples: int, steps: int, delta: float
) -> float:
    """Epsilon of one client's private SGD, for adding or removing one of its examples.

    Args:
        multiplier: the standard deviation of the noise, divided by the bound on the norm
            of an example's gradient.
        batch_size: the expected number of examples in a step.
        examples: the number of examples that the client trains on.
        steps: the number of steps that it has taken.
        delta: probability that the guarantee may fail.

    Returns:
        Epsilon; infinite if overfull draws alone use up half of delta.
    """
    return composed_sgd_epsilon([(multiplier, batch_size, examples, steps)], delta)


def composed_sgd_epsilon(
    steps: Iterable[tuple[float, int, int, int]], delta: float
) -> float:
    """Epsilon of a client's private SGD with several settings together.

    A step whose draw exceeds `max_private_batch` takes fewer examples than drawn; delta pays
    for the probability of that.

    Args:
        steps: for each setting the multiplier, batch size, number of examples and
            number of steps, as `sgd_epsilon` takes them.
        delta: probability that the guarantee may fail.
    """
    taken = [setting for setting in steps if setting[2] > 0 and setting[3] > 0]
    if not taken:
        return 0.0
    # Imported here, as it takes half a second.
    from scipy import stats

    sums = []
    p = 0.0  # the probability of an overfull draw in any step, at most
    for multiplier, batch_size, examples, count in taken:
        probability = min(1.0, batch_size / examples)
        sums.append((multiplier, probability, count))
        overfull = stats.binom.sf(max_private_batch(batch_size), examples, probability)
        p += count * float(overfull)
    epsilon = composed_epsilon(sums, delta)
    # If two mechanisms differ with probability p at most and one is (epsilon, delta)-
    # private, the other is (epsilon, delta + (1 + e^epsilon) p)-private.
    if p == 0:
        return epsilon
    # If at most half of delta is used up, epsilon grows by less than 1 (by log 2 at the
    # order 2, less at larger ones). The limit 700 keeps exp from overflowing.
    overfull_delta = p * (1 + math.exp(min(epsilon + 1, 700)))
    if overfull_delta >= delta / 2:
        return math.inf
    return composed_epsilon(sums, delta - overfull_delta)


def require_delta(delta: float, units: int, what: str) -> None:
    """Refuse a delta that a mechanism could spend on publishing somebody's data.

    Raises:
        ValueError: it is not below one over the number of units.
    """
    require(
        delta * units < 1,
        f"delta is {delta:g}; it must be below one over the number of {what}, {units}",
    )
