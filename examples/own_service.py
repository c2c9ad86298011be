"""A federation inside services of your own.

`serve` and `join` are what the commands call. Here each runs in a thread, with a handle
that another thread asks what happens, and by which it ends them: a coordinator behind a
page of its own, and clients that a larger program starts and stops.

It needs the extra `federation`, and takes about a minute.
"""

import importlib.util
import json
import shutil
import sys
import threading
import urllib.request
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedtailor.remote import Handle, RunLog, join, serve
from fedtailor.remote.demo import free_port
from fedtailor.remote.keys.kit import make_federation

if importlib.util.find_spec("httpx") is None:
    sys.exit("skipped: pip install 'fedtailor[federation]'")

CLIENTS = ("north", "east", "south")
JOB = f"""
title = "wards"
[coordinator]
address = "127.0.0.1:{free_port()}"
[data]
target = "ill"
classes = ["no", "yes"]
[data.columns]
age = "number"
pulse = "number"
[model]
use = "logistic"
[method]
use = "fedavg"
sgd = {{ lr = 0.1, epochs = 1, batch_size = 16 }}
[training]
rounds = 8
"""

# The coordinator makes the federation, and each client decides what it allows.
rng = np.random.default_rng(0)
shutil.rmtree("wards", ignore_errors=True)
Path("job.toml").write_text(JOB)
make_federation(Path("wards"), CLIENTS, job=Path("job.toml"))
for name in CLIENTS:
    kit = Path("wards/kits", name)
    shutil.copy("job.toml", kit)
    (kit / "policy.toml").write_text(
        "secure_aggregation_only = false\nmeasurements = true\n"
    )
    z = rng.normal(size=(150, 2))
    ill = rng.random(150) < 1 / (1 + np.exp(-2 * z @ [1.0, -1.0]))
    rows = {"age": z[:, 0], "pulse": z[:, 1], "ill": np.where(ill, "yes", "no")}
    pl.DataFrame(rows).write_csv(f"{name}.csv")


def quiet(line: str) -> None:
    """The lines of this example's logs, which nobody reads."""


# Both sides run in threads, with handles.
handles = {name: Handle() for name in ("coordinator", *CLIENTS)}
clients = [
    threading.Thread(
        target=join,
        args=(f"wards/kits/{name}", f"{name}.csv"),
        kwargs={"handle": handles[name], "log": RunLog(show=quiet)},
    )
    for name in CLIENTS
]
coordinator = threading.Thread(
    target=serve,
    args=("wards",),
    kwargs={
        "listen": "127.0.0.1",
        "handle": handles["coordinator"],
        "tell": quiet,
        "log": RunLog(show=quiet),
    },
)


class Page(BaseHTTPRequestHandler):
    """A page of your own, which says what all of them do."""

    def do_GET(self) -> None:
        now = {name: asdict(handle.status) for name, handle in handles.items()}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(now).encode())

    def log_message(self, *_: object) -> None:
        pass


page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=page.serve_forever, daemon=True).start()
for thread in (coordinator, *clients):
    thread.start()
coordinator.join()
address = f"http://127.0.0.1:{page.server_address[1]}"
with urllib.request.urlopen(address, timeout=10) as answer:
    status = json.load(answer)
for name in CLIENTS:
    handles[name].stop()
for thread in clients:
    thread.join()
page.shutdown()

done = status["coordinator"]
print(f"The coordinator: {done['state']}, {done['round']} of {done['rounds']} rounds.")
for name in CLIENTS:
    print(f"{name}: {status[name]['answers']} answers")

metrics = pl.read_parquet("wards/run/metrics.parquet")
shown = metrics.filter(metric="loss", split="test").group_by("round")
shown = shown.agg(pl.col("value").mean()).sort("round")
plt.plot(shown["round"], shown["value"])
plt.xlabel("round")
plt.ylabel("mean test loss")
plt.tight_layout()
plt.savefig("own_service.png", dpi=120)
