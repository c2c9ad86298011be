"""Transforms of the messages between clients and the server, one in each file.

They are applied in the order of the argument: `run(..., uplink=(Clip(1.0),
Cast("float16")))`.

`Transform.registry` holds them by name. `import_modules` finds every module of this folder
that defines a transform. The imports below are for type checkers and editors.
"""

from itertools import pairwise
from typing import get_args

from fedtailor._base.choice import require
from fedtailor._base.entry_points import find_registered, import_modules
from fedtailor.aggregation.pipelines.byzantine import Byzantine
from fedtailor.aggregation.pipelines.cast import Cast
from fedtailor.aggregation.pipelines.clip import Clip
from fedtailor.aggregation.pipelines.gaussian_noise import GaussianNoise
from fedtailor.aggregation.pipelines.quantize import Quantize
from fedtailor.aggregation.pipelines.robust_mean import RobustMean
from fedtailor.aggregation.pipelines.top_k import TopK
from fedtailor.protocol import Pipeline, Stage, Transform

__all__ = [
    "Byzantine",
    "Cast",
    "Clip",
    "GaussianNoise",
    "Quantize",
    "RobustMean",
    "TopK",
    "check_stages",
    "find_transform",
    "transform_names",
]

ENTRY_POINTS = "fedtailor.transforms"
"""The group of entry points under which other packages offer transforms."""

import_modules(__name__)


def find_transform(name: str) -> type[Transform]:
    """The transform of that name.

    Raises:
        ValueError: neither fedtailor nor an installed package has a transform of that
            name, or the package's is broken.

    Example:
        >>> from fedtailor.aggregation.pipelines import find_transform
        >>> find_transform("clip").__name__
        'Clip'
    """
    return find_registered(
        Transform.registry, name, "uplink transform", ENTRY_POINTS, base=Transform
    )


def transform_names() -> list[str]:
    """The names of all transforms, in the order of their stages. Transforms without a
    stage come last.

    Example:
        >>> from fedtailor.aggregation.pipelines import transform_names
        >>> transform_names()
        ['robust-mean', 'clip', 'gaussian-noise', 'byzantine', 'top-k', 'cast', 'quantize']
    """
    stages = [*get_args(Stage), None]
    return sorted(
        Transform.registry,
        key=lambda name: (stages.index(Transform.registry[name].stage), name),
    )


def check_stages(uplink: Pipeline) -> None:
    """Refuse an uplink whose transforms are not in the order of their stages. For example,
    noise must come before compression.

    Raises:
        ValueError: two transforms are in the wrong order, or have the same stage.

    Example:
        >>> from fedtailor.aggregation.pipelines import Clip, GaussianNoise, check_stages
        >>> check_stages((Clip(), GaussianNoise()))
    """
    stages = get_args(Stage)
    # Transforms without a stage may be anywhere.
    staged = [transform for transform in uplink if transform.stage is not None]
    for before, after in pairwise(staged):
        require(
            stages.index(before.stage) < stages.index(after.stage),
            f"the uplink applies {type(before).__name__} before"
            f" {type(after).__name__}; use each at most once, in this order:"
            f" {_stage_order()}",
        )


def _stage_order() -> str:
    """The names of the transforms, stage by stage, for messages."""
    alternatives = []
    for stage in get_args(Stage):
        names = [
            name
            for name, transform in Transform.registry.items()
            if transform.stage == stage
        ]
        alternatives.append(" or ".join(sorted(names)))
    return ", then ".join(alternatives)
