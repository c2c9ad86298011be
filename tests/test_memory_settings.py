"""What a process is told before it compiles, so that it stays small: each in a process
of its own.
"""

import os
import subprocess
import sys

import jax
import pytest

from fedtailor._base.xla_flags import FIRST_JAX_WITHOUT_OLD_EMITTERS

PROGRAM = """
import os
from fedtailor._base.memory import save_memory
save_memory()
save_memory()
print(os.getenv("XLA_FLAGS", ""))
import jax
jax.jit(lambda x: jax.numpy.tanh(x) + x)(1.0)  # XLA knows the flags
"""
IN_TWO = "--xla_cpu_parallel_codegen_split_count=2"
FLAGS = []
if jax.__version_info__ < FIRST_JAX_WITHOUT_OLD_EMITTERS:
    FLAGS += [
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]


EVERY_MODULE = """
import importlib, os, pkgutil, sys
def settings():
    return {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_"))}
before = settings()
import fedtailor
for module in pkgutil.walk_packages(fedtailor.__path__, "fedtailor."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except (ImportError, ValueError):  # an extra is not installed
        continue
    if settings() != before:
        sys.exit(f"{module.name} changes the compiler's settings: {settings()}")
"""


def finished(program, given):
    """What `program` printed, in a process without settings of JAX but `given`."""
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
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, FLAGS),
        ({"XLA_FLAGS": IN_TWO}, [IN_TWO, *FLAGS[:1]]),
    ],
)
def test_flags_are_added_once_and_the_users_stay(given, expected):
    assert finished(PROGRAM, given).split() == expected


def test_no_module_makes_settings_when_it_is_imported():
    """Runs in processes started later would compile other programs."""
    finished(EVERY_MODULE, {})
