"""Old spellings work for one more release, and say so in one line."""

import inspect

import numpy as np
import pytest

from fedtailor.federation import (
    IID,
    ClassesPerClient,
    Dataset,
    DirichletByClass,
    DirichletByClient,
    Natural,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda **least: IID(3, **least),
        lambda **least: ClassesPerClient(3, **least),
        lambda **least: DirichletByClass(3, 1.0, **least),
        lambda **least: DirichletByClient(3, 1.0, **least),
        Natural,
    ],
)
def test_least_is_min_samples_now(make):
    with pytest.warns(
        DeprecationWarning,
        match=r"^\w+: least is now min_samples; least goes with 0\.3$",
    ) as warned:
        old = make(least=4)
    assert len(warned) == 1
    assert old == make(min_samples=4) and old != make(min_samples=5)
    with pytest.raises(
        ValueError, match="takes min_samples, once least; give one of them"
    ):
        make(least=4, min_samples=4)


def test_renamed_arguments_keep_their_place_in_the_signature():
    assert list(inspect.signature(IID).parameters) == [
        "clients",
        "sizes",
        "use_all",
        "min_samples",
    ]
    data = Dataset(np.zeros((40, 1)), np.zeros(40, int), 2)
    assert min(map(len, IID(3, None, False, 5)(data, 0))) >= 5
