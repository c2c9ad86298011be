"""Transforms of what travels between clients and the server: `run(..., uplink=(Clip(1.0), Cast("float16")))`."""

from itertools import pairwise

from fedtailor.pipelines.cast import Cast
from fedtailor.pipelines.clip import Clip
from fedtailor.pipelines.gaussian_noise import GaussianNoise
from fedtailor.pipelines.quantize import Quantize
from fedtailor.pipelines.top_k import TopK
from fedtailor.protocol import Pipeline, Transform, require

__all__ = ["TRANSFORMS", "Cast", "Clip", "GaussianNoise", "Quantize", "TopK", "check_order"]

TRANSFORMS: dict[str, type[Transform]] = {
    "clip": Clip,
    "gaussian-noise": GaussianNoise,
    "top-k": TopK,
    "quantize": Quantize,
    "cast": Cast,
}
"""Transforms by the names that files and the command line know, in the order in which they may follow each other."""

_STAGES = {Clip: 0, GaussianNoise: 1, TopK: 2, Quantize: 3, Cast: 3}


def check_order(uplink: Pipeline) -> None:
    """Refuse an uplink whose transforms stand in an order in which they do not do what they say: noise must come after
    clipping and before compression, and only one transform can say how numbers are written.

    Raises:
        ValueError: with the two that are in the wrong order.
    """
    # transforms of the user's own may stand anywhere
    known = [transform for transform in uplink if type(transform) in _STAGES]
    for before, after in pairwise(known):
        one, other = type(before).__name__, type(after).__name__
        fits = _STAGES[type(before)] < _STAGES[type(after)]
        require(fits, f"the uplink applies {one} before {other}; use each of Clip, GaussianNoise, TopK and one of "
                      "Quantize and Cast at most once, in this order")  # fmt: skip
