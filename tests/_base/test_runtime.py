"""JAX's settings, each tried in a process of its own: they are made once, before the
backend starts.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import fedtailor as ft
from fedtailor._base import runtime
from fedtailor.testing import classification, softmax_model

PROGRAM = """
import warnings
warnings.simplefilter("error")
import jax
{before}
from fedtailor._base.runtime import configure_jax
from fedtailor._base.xla_flags import wait_without_limit
configure_jax()
wait_without_limit()
print(jax.config.jax_compilation_cache_dir)
print(jax.config.jax_persistent_cache_min_compile_time_secs)
print(jax.device_count())
import os
print(os.environ["XLA_FLAGS"])
"""


@pytest.fixture
def settings(tmp_path):
    """Cache directory, shortest compilation that is kept, and devices, after what the
    user did `before`.
    """

    def run(before="", **environment):
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JAX_", "XLA_"))
        }
        clean |= {
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "JAX_PLATFORMS": "cpu",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(before=before)],
            env=clean | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        directory, seconds, devices, run.flags = done.stdout.splitlines()
        run.said = done.stderr
        return directory, float(seconds), int(devices)

    return run


def cores():
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    )


def test_by_default_every_core_is_a_device_and_every_program_is_kept(
    settings, tmp_path
):
    directory, seconds, devices = settings()
    assert os.path.isdir(directory) and directory.startswith(str(tmp_path))
    assert (seconds, devices) == (0.0, cores())


def test_environment_variables_stay(settings, tmp_path):
    assert settings(
        JAX_NUM_CPU_DEVICES="3",
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1",
    ) == (str(tmp_path / "mine"), 1.0, 3)


def test_settings_made_in_python_stay(settings, tmp_path):
    before = f"""
jax.config.update("jax_num_cpu_devices", 5)
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 2.0)
"""
    assert settings(before) == (str(tmp_path), 2.0, 5)


def test_xla_flags_stay(settings):
    assert settings(XLA_FLAGS="--xla_force_host_platform_device_count=4")[2] == 4
    assert "device_count=4" in settings.flags
    mine = "--xla_cpu_collective_call_terminate_timeout_seconds=7"
    settings(XLA_FLAGS=mine)
    assert settings.flags.count("terminate_timeout") == 1 and mine in settings.flags


def test_a_device_waits_for_another_as_long_as_it_takes(settings):
    """XLA ends the process after 40 seconds."""
    settings()
    for event in ("warn_stuck", "terminate"):
        name = f"--xla_cpu_collective_call_{event}_timeout_seconds"
        assert f"{name}=100000000" in settings.flags


def test_a_backend_that_runs_already_keeps_its_devices(settings):
    assert settings("jax.devices()")[2] == 1


LATE = """
import jax, jax.numpy as jnp
key = jax.random.key(0)
from _base.test_runtime import trained
run = trained()
print(run.training.executor.devices.mesh.size, float(jnp.sum(run.training.server.model)))
"""


def trained():
    """A run with the devices of this process."""
    return ft.run(ft.FedAvg(), classification(), softmax_model("float32"), 2)


@pytest.mark.skipif(cores() == 1, reason="one core is one device")
def test_a_run_uses_every_core_though_jax_was_called_before():
    """Every notebook calls JAX before its first run."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    del environment["JAX_NUM_CPU_DEVICES"]
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    devices, total = done.stdout.split()
    assert int(devices) == cores()
    expected = np.asarray(trained().training.server.model).sum()
    np.testing.assert_allclose(float(total), expected, rtol=1e-5)


def test_where_devices_cannot_be_had_a_line_says_what_to_do(monkeypatch, caplog):
    def refuse(**options):
        raise TypeError("no argument num_devices")

    monkeypatch.setattr("jaxlib.xla_client.make_cpu_client", refuse)
    runtime._second_devices.cache_clear()
    assert runtime._second_devices() == []
    assert "one of" in caplog.text and "JAX_NUM_CPU_DEVICES=" in caplog.text
    runtime._second_devices.cache_clear()


def test_without_a_cache_directory_nothing_is_kept(settings, tmp_path):
    (tmp_path / "file").touch()
    assert settings(XDG_CACHE_HOME=str(tmp_path / "file"))[0] == "None"


def test_damaged_entries_of_the_compilation_cache_are_removed_with_one_line(
    settings, tmp_path
):
    """Real entries: one is whole, the others are what kills, full disks and flipped
    bits leave.
    """
    compiling = """
jax.config.update('jax_compilation_cache_dir', {directory!r})
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
jax.jit(lambda x: x + 1)(1.0)
"""
    cache = tmp_path / "cache" / "fedtailor" / "jax"
    settings(
        compiling.format(directory=str(cache)),
        XLA_FLAGS="--xla_force_host_platform_device_count=1",
    )
    (whole,) = cache.glob("*-cache")
    content = whole.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]
    for name, damaged in (
        ("empty", b""),
        ("short", content[:middle]),
        ("flipped", flipped),
    ):
        (cache / f"jit_{name}-cache").write_bytes(damaged)
    (cache / "mine.txt").write_bytes(b"")
    settings()
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [whole.name, "mine.txt", "fedtailor-checked"]
    )
    assert whole.read_bytes() == content
    assert (
        settings.said.count("\n") == 1
        and "removed 3 damaged entries of the compilation cache" in settings.said
    )
    settings()
    assert settings.said == ""


def test_entries_that_were_checked_before_are_not_read_again(tmp_path):
    entry = tmp_path / "jit_old-cache"
    entry.write_bytes(b"")
    os.utime(entry, (1e9, 1e9))
    (tmp_path / "fedtailor-checked").touch()
    runtime._remove_unreadable(tmp_path)
    assert entry.exists()
    (tmp_path / "fedtailor-checked").unlink()
    runtime._remove_unreadable(tmp_path)
    assert not entry.exists()
