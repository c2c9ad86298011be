"""What a run has given away: epsilon of differential privacy, as the package
`dp-accounting` computes it.

All figures are of its accountant of Rényi differential privacy (Mironov 2017) over
whole orders. Needs the extra `privacy`.
"""

import math
from functools import cache
from typing import Any

from fedtailor.protocol import require

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Orders of the Rényi divergence that the smallest epsilon is sought over: below 2 only
very large ones need any.
"""


def batch_room(batch_size: int) -> int:
    """Places for the examples that a private step draws, when `batch_size` are
    expected.

    Returns:
        So many that more are drawn less than once in 10^12 steps (Poisson's upper
        tail).
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
    """Epsilon of noisy sums of which each took every unit (client, example) with a
    probability of its own draw.

    Args:
        multiplier: deviation of the noise over the largest norm that a unit adds to a
            sum.
        probability: with which a unit takes part in a sum; 1 = always.
        steps: sums.
        delta: probability that the guarantee may fail.

    Returns:
        Epsilon, for adding or removing one unit; 0 where nothing was published.
    """
    if steps == 0:
        return 0.0
    library = require_accountant()
    # A noisy sum over all units, or over a sample of them, whose privacy is amplified
    # by the sampling; composed `steps` times by adding Rényi divergences up.
    sum_of_all = library.GaussianDpEvent(multiplier)
    event = (
        sum_of_all
        if probability == 1
        else library.PoissonSampledDpEvent(probability, sum_of_all)
    )
    accountant = library.rdp.RdpAccountant(ORDERS)
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


@cache
def sgd_epsilon(
    multiplier: float, batch_size: int, examples: int, steps: int, delta: float
) -> float:
    """Epsilon of one client's private SGD, for adding or removing one of its examples.

    A step whose draw exceeds `batch_room` takes fewer examples than drawn; delta pays
    for the probability of that.

    Args:
        multiplier: deviation of the noise over the bound of an example's gradient.
        batch_size: examples expected in a step.
        examples: that the client trains on.
        steps: that it has taken.
        delta: probability that the guarantee may fail.

    Returns:
        Epsilon; infinite where overfull draws alone spend half of delta.
    """
    if steps == 0 or examples == 0:
        return 0.0
    probability = min(1.0, batch_size / examples)
    epsilon = sampled_gaussian_epsilon(multiplier, probability, steps, delta)
    from scipy import stats  # it takes half a second to import

    # of two mechanisms that differ with probability p, one has delta + (1 + e^epsilon)
    # p of the other's delta
    differ = steps * float(
        stats.binom.sf(batch_room(batch_size), examples, probability)
    )
    if differ == 0:
        return epsilon
    # With at most half of delta gone epsilon grows by less than 1 (by log 2 at the
    # order 2, less at larger ones); 700 keeps exp from overflowing.
    lost = differ * (1 + math.exp(min(epsilon + 1, 700)))
    if lost >= delta / 2:
        return math.inf
    return sampled_gaussian_epsilon(multiplier, probability, steps, delta - lost)


def require_delta(delta: float, units: int, what: str) -> None:
    """Refuse a delta that a mechanism could spend on publishing somebody's data.

    Raises:
        ValueError: it is not below one over the number of units.
    """
    require(
        delta * units < 1,
        f"delta is {delta:g}; it must be below one over the number of {what}, {units}",
    )
