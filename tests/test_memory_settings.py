"""What a process is told before it compiles, so that it stays small: each in a process
of its own.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from fedtailor._memory import save_memory
save_memory()
save_memory()
print(os.environ["XLA_FLAGS"])
import jax
jax.jit(lambda x: jax.numpy.tanh(x) + x)(1.0)  # XLA knows the flags
"""
EMITTERS, SPLIT = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [EMITTERS, SPLIT]),
        (
            {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"},
            ["--xla_cpu_use_fusion_emitters=true", SPLIT],
        ),
    ],
)
def test_flags_are_added_once_and_the_users_stay(given, expected):
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_"))
    }
    environment = (
        clean
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        | given
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == expected
