"""Private training with a budget.

Clients clip what they send, and noise is added to the mean, so that nobody who sees the
models can tell whether a client took part. How much accuracy does that cost? With the
400 clients and eleven weights of this example next to nothing; with tens of clients, or
with large models, more. Every run reports its epsilon: below 1 is a strong promise,
above 10 a weak one.

It needs the extra `privacy`.
"""

import importlib.util
import sys

import matplotlib.pyplot as plt
import numpy as np

import fedtailor as ft
from fedtailor.aggregation.pipelines import Clip, GaussianNoise

if importlib.util.find_spec("dp_accounting") is None:
    sys.exit("skipped: pip install 'fedtailor[privacy]'")

# 400 clients with 20 rows each of one linear rule, and a little of their own.
rng = np.random.default_rng(0)
clients, rows, features = 400, 20, 10
rule = rng.normal(size=features)
x = rng.normal(size=(clients * rows, features)).astype(np.float32)
client = np.repeat(np.arange(clients), rows)
y = (x @ rule + rng.normal(size=len(x)) > 0).astype(np.int64)
federation = ft.federation.from_arrays(x, y, client, test=0.25)

method = ft.FedAvg(sgd=ft.SGD(lr=0.5, epochs=2, batch_size=8), weights="uniform")
everybody = ft.Participation(fraction=0.2, sampling="poisson")


def train(uplink):
    return ft.run(
        method,
        federation,
        ft.models.logistic(),
        rounds=30,
        participation=everybody,
        uplink=uplink,
    )


plain = train((Clip(0.5),)).summary()
print(f"without noise         accuracy {plain.mean:.3f}")
found = []
for noise in (0.5, 1.0, 2.0, 4.0):
    summary = train((GaussianNoise(noise, norm=0.5, delta=1e-3),)).summary()
    found.append((summary.client_epsilon, summary.mean))
    print(
        f"noise {noise:3.1f}, epsilon {summary.client_epsilon:5.1f}"
        f"  accuracy {summary.mean:.3f}"
    )

figure, axes = plt.subplots(figsize=(5, 3.6))
axes.plot(*zip(*found, strict=True), "o-", label="with noise")
axes.axhline(plain.mean, linestyle="--", color="gray", label="without")
axes.set(xscale="log", xlabel="epsilon (delta = 0.001)", ylabel="mean test accuracy")
axes.legend()
figure.tight_layout()
figure.savefig("private_training.png", dpi=120)
