"""Elementary functions that are the same on every machine."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import special

from fedtailor.statistics import portable

X = np.concatenate(
    [np.random.default_rng(0).normal(0, 10.0**size, 2000) for size in range(-8, 3)]
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (portable.exp, np.exp),
        (portable.expit, special.expit),
        (portable.softplus, lambda x: np.logaddexp(0, x)),
        (lambda x: portable.log(np.abs(x)), lambda x: np.log(np.abs(x))),
        (
            lambda x: portable.log_softmax(x.reshape(-1, 4)),
            lambda x: special.log_softmax(x.reshape(-1, 4), axis=1),
        ),
    ],
)
def test_they_are_those_of_numpy_and_scipy(ours, theirs):
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-15, atol=1e-15)


def test_they_end_where_numbers_end():
    far = np.array([-np.inf, -1e300, 1e300, np.inf])
    assert portable.exp(far).tolist() == [0, 0, np.inf, np.inf]
    assert portable.expit(far).tolist() == [0, 0, 1, 1]
    assert portable.softplus(far).tolist() == [0, 0, 1e300, np.inf]
    assert np.isnan(portable.exp(np.array([np.nan]))).all()


PRINTS = """
import hashlib, numpy as np
from fedtailor.statistics.boosting.rows import derivatives, row_losses
from fedtailor.statistics.regression.sums import ClientRows, terms_of
rng = np.random.default_rng(0)
found = hashlib.sha256()
for size in (0.1, 1, 10, 25):
    x, y = rng.normal(size=(4000, 3)), rng.integers(0, 2, 4000).astype(float)
    for model in ("linear", "logistic", "poisson"):
        for block in terms_of(ClientRows(x, y), model, size * np.ones(4)).blocks():
            found.update(block.tobytes())
    for outputs in (1, 3):
        raw = size * rng.normal(size=(4000, outputs))
        for part in derivatives(raw, y.astype(int), max(outputs, 2)):
            found.update(part.tobytes())
        found.update(row_losses(raw, y.astype(int), max(outputs, 2)).tobytes())
print(found.hexdigest())
"""


def test_what_rows_add_over_machines_has_the_same_bits_on_each():
    """NumPy's exponential differs where a processor has no AVX512: in a sum over machines
    the rows of who has none were known by it.
    """
    slower = "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX X86_V3 AVX2 FMA3"
    told = []
    for features in ("", slower):
        env = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features}
        env = {
            **env,
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", PRINTS], env=env, capture_output=True, check=True
        )
        told.append(done.stdout.strip()[-64:])
    assert told[0] == told[1] and len(told[0]) == hashlib.sha256().digest_size * 2
