"""Whether a loss has converged: the one rule that ends training and makes reports
warn of too little of it.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

WINDOW = 1 / 3
"""The share of the rounds, the last ones, in which a loss must not move."""
TOLERANCE = 1e-3
"""The largest change of a loss that has converged, as a share of the loss."""
MIN_EVALUATIONS = 5
"""With fewer evaluations in the window, nothing is said."""
SMALLEST_LOSS = 0.01
"""Changes are compared with this share of the first loss at least, as a loss may go to 0."""

Movement = Literal["still", "falling", "rising", "wavering", "unknown"]


def movement(rounds: ArrayLike, losses: ArrayLike) -> Movement:
    """How a loss moves in the last third of the rounds.

    It has converged if all losses in this window lie within 0.1 % of the last one.
    Otherwise it falls or rises if the means of the window's two halves differ by more
    than that, and by more than the losses scatter around these means. A window in
    proportion to the rounds finds slow changes as well as fast ones.

    Args:
        rounds: [r] round numbers, ascending.
        losses: [r] losses after these rounds.

    Returns:
        "still", "falling", "rising", or "wavering" (it moves without direction);
        "unknown" with fewer than five evaluations in the window, or if a loss is not
        finite.

    Example:
        >>> from fedtailor.statistics.decision import movement
        >>> movement(range(1, 31), [1 / r for r in range(1, 31)])
        'falling'
    """
    from scipy import special  # takes clients of a federation memory

    numbers = np.asarray(rounds, np.float64)
    values = np.asarray(losses, np.float64)
    if not len(values) or not np.isfinite(values).all():
        return "unknown"
    in_window = numbers >= (1 - WINDOW) * numbers[-1]
    window = values[in_window]
    if len(window) < MIN_EVALUATIONS:
        return "unknown"
    allowed = TOLERANCE * max(abs(window[-1]), SMALLEST_LOSS * abs(values[0]))
    if window.max() - window.min() <= allowed:
        return "still"
    half = len(window) // 2
    first, second = window[:half], window[-half:]
    change = second.mean() - first.mean()
    # The standard error of the difference of two means, if losses are a trend and noise.
    scatter = float(np.std(np.diff(window))) / np.sqrt(half)
    # One window in 500 without a trend moves by more; few evaluations tell less.
    most = float(special.stdtrit(len(window) - 2, 0.999)) * scatter
    if abs(change) <= max(allowed, most):
        return "wavering"
    return "falling" if change < 0 else "rising"
