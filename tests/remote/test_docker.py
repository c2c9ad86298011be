"""The files of docker/: their steps run as processes on this machine, without
containers.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
if not DOCKER.exists():
    pytest.skip("docker/ is in the repository only", allow_module_level=True)

CLIENTS = ("north", "south", "west")
COMMAND = [sys.executable, "-m", "fedtailor"]


def commands():
    """The commands of the compose file, the coordinator's first."""
    return re.findall(r"^ +command: (.+)$", (DOCKER / "compose.yaml").read_text(), re.M)


def test_the_compose_file_mounts_the_kit_and_the_table_of_each_client():
    text = (DOCKER / "compose.yaml").read_text()
    for name in CLIENTS:
        assert f"/wards/kits/{name}:/data/kit" in text
        assert f"/{name}.csv:/data/rows.csv:ro" in text
    assert f"for name in {' '.join(CLIENTS)}" in (DOCKER / "prepare.sh").read_text()


def test_the_image_holds_what_the_package_needs():
    text = (DOCKER / "Dockerfile").read_text()
    copied = re.search(r"^COPY (.+) \./$", text, re.M)[1].split()
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= {*copied}
    assert all((DOCKER.parent / file).exists() for file in copied)


@pytest.mark.parametrize("side", ["serve", "join"])
def test_units_start_commands_that_there_are(side):
    from fedtailor.cli.commands.federation import COMMANDS

    text = (DOCKER / "systemd" / f"fedtailor-{side}@.service").read_text()
    assert f"fedtailor federation {side} /srv/fedtailor/%i" in text
    assert side in COMMANDS


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    "FEDTAILOR_PROCESS_TESTS" not in os.environ,
    reason="starts servers and clients; set FEDTAILOR_PROCESS_TESTS=1",
)
def test_the_steps_of_the_containers_train(tmp_path):
    from fedtailor.remote.demo import free_port, stop

    demo = tmp_path / "demo"
    subprocess.run(
        ["sh", str(DOCKER / "prepare.sh"), str(demo), f"127.0.0.1:{free_port()}"],
        env=os.environ | {"FEDTAILOR": " ".join(COMMAND)},
        check=True,
    )
    coordinator, client = commands()
    clients = []
    try:
        for name in CLIENTS:
            line = client.replace("/data/kit", str(demo / "wards" / "kits" / name))
            line = line.replace("/data/rows.csv", str(demo / f"{name}.csv"))
            clients.append(subprocess.Popen([*COMMAND, *line.split()]))
        line = coordinator.replace("/data/wards", str(demo / "wards"))
        subprocess.run([*COMMAND, *line.split()], check=True, timeout=900)
    finally:
        for process in clients:
            stop(process)
    assert (demo / "wards" / "run" / "summary.json").exists()
