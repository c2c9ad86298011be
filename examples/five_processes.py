"""A federation of five processes.

A coordinator and four clients, each a process with its own table and its own key, talk
over TLS. The coordinator sees sums over clients only (secure aggregation), and each
client writes down what it allows and what has left it. These are the steps that
machines in different hospitals take; here all of them are on this one.

It needs the extra `federation`, and takes about a minute.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedtailor.remote.demo import free_port, stop

if importlib.util.find_spec("httpx") is None:
    sys.exit("skipped: pip install 'fedtailor[federation]'")

FEDTAILOR = [sys.executable, "-m", "fedtailor", "federation"]
CLIENTS = ("north", "east", "south", "west")


def fedtailor(*arguments: str) -> str:
    """Runs `fedtailor federation ...`, and returns what it prints."""
    done = subprocess.run(
        [*FEDTAILOR, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


# Each client has a table of its own.
rng = np.random.default_rng(0)
for name in CLIENTS:
    z = rng.normal(size=(150, 2))
    ill = rng.random(150) < 1 / (1 + np.exp(-2 * z @ [1.0, -1.0]))
    frame = pl.DataFrame({"age": 50 + 10 * z[:, 0], "pulse": 70 + 8 * z[:, 1]})
    frame.with_columns(ill=np.where(ill, "yes", "no")).write_csv(f"{name}.csv")

# The coordinator makes the federation: the job, and a kit with a key for each client.
shutil.rmtree("wards", ignore_errors=True)
address = f"127.0.0.1:{free_port()}"
table = ["--data", "north.csv", "--target", "ill"]
fedtailor("init", "wards", "--clients", ",".join(CLIENTS), "--address", address, *table)

# The job says what is trained. Five rounds are enough here, and are measured.
job = Path("wards/job.toml")
text = job.read_text().replace("rounds = 50", "rounds = 5")
job.write_text(text.replace("evaluate = false", "evaluate = true"))

# Each client copies the job into its kit, and decides what it allows.
for name in CLIENTS:
    kit = Path("wards/kits", name)
    shutil.copy(job, kit)
    fedtailor("join", str(kit), "--init-policy")
    policy = kit / "policy.toml"
    # Sums of losses are each client's own: no mask covers them.
    text = policy.read_text().replace("measurements = false", "measurements = true")
    open_sums = "secure_aggregation_only = false"
    policy.write_text(text.replace("secure_aggregation_only = true", open_sums))

# All five run at the same time. Clients stay until they are stopped.
clients = [
    subprocess.Popen(
        [*FEDTAILOR, "join", f"wards/kits/{name}", "--data", f"{name}.csv"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for name in CLIENTS
]
try:
    served = fedtailor("serve", "wards")
finally:
    for client in clients:
        stop(client)
print(f"{len(CLIENTS) + 1} processes have trained; the coordinator's last lines:")
print("\n".join(served.strip().splitlines()[-4:]))

# Each client predicts with its own model, which never left it, and knows what did.
pl.read_csv("north.csv").drop("ill").head(5).write_csv("new.csv")
print(fedtailor("predict", "wards/kits/north", "--data", "new.csv"))
print(fedtailor("audit", "wards/kits/north", "--last", "3"))

metrics = pl.read_parquet("wards/run/metrics.parquet")
shown = metrics.filter(metric="loss", split="test").group_by("round")
shown = shown.agg(pl.col("value").mean()).sort("round")
plt.plot(shown["round"], shown["value"])
plt.xlabel("round")
plt.ylabel("mean test loss")
plt.tight_layout()
plt.savefig("five_processes.png", dpi=120)
