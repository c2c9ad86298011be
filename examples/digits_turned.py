"""Digits that clients see turned: groups that nobody names.

Four groups of five clients see handwritten digits turned by 0, 90, 180 and 270 degrees.
One model for all has to read every angle; a model for each client has 72 images to
learn from. UCFL finds out from the clients' gradients who should learn from whom. The
picture shows its weights: rows are clients, ordered by their true group.
"""

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import fedtailor as ft

federation = ft.scenarios.digits_rotated(seed=0)
sgd = ft.SGD(lr=0.05, momentum=0.9, epochs=5, batch_size=16)
methods = {
    "alone": ft.Local(sgd=sgd),
    "one model": ft.FedAvg(sgd=sgd),
    "four streams": ft.UCFL(sgd=sgd, streams=4),
}
runs = {
    name: ft.run(method, federation, ft.models.mlp(hidden=64), rounds=25)
    for name, method in methods.items()
}
for name, run in runs.items():
    summary = run.summary()
    print(
        f"{name:12}  mean accuracy {summary.mean:.3f}, worst client {summary.worst:.3f},"
        f" models down {summary.models_down}"
    )

figure, (curves, weights) = plt.subplots(1, 2, figsize=(9, 3.6))
for name, run in runs.items():
    frame = run.frame().filter(metric="accuracy", split="test")
    mean = frame.group_by("round").agg(pl.col("value").mean()).sort("round")
    curves.plot(mean["round"], mean["value"], label=name)
curves.set(xlabel="round", ylabel="mean test accuracy")
curves.legend()
ucfl = runs["four streams"]
found = ucfl.algorithm.diagnostics(ucfl.training.server)
matrix = next(one for one in found if one.name == "collaboration")
# A matrix between clients has the order in which the run knows them.
group_of = dict(zip(federation.names, (c.group for c in federation), strict=True))
groups = [group_of[name] for name in ucfl.training.population.names]
order = np.argsort(groups, kind="stable")
weights.imshow(matrix.values[np.ix_(order, order)], cmap="viridis")
weights.set(title="who learns from whom", xlabel="client", ylabel="client")
weights.set(xticks=[], yticks=[])
figure.tight_layout()
figure.savefig("digits_turned.png", dpi=120)
