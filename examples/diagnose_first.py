"""Diagnose before training.

One probe, without training, says whether clients differ, who resembles whom, and which
three methods are worth a comparison. Only these three are then trained, with the
settings that the diagnosis gives.
"""

import matplotlib.pyplot as plt

import fedtailor as ft
from fedtailor.algorithms.find import find_algorithm

federation = ft.scenarios.digits_label_shift(seed=0, val=0.1)
model = ft.models.mlp(hidden=64)
advice = ft.diagnose(federation, model)
for sentence in advice.sentences():
    print(sentence)

means = {}
for entry in advice.race.entries:
    method = find_algorithm(entry.method)(**entry.settings)
    run = ft.run(method, federation, model, rounds=20)
    means[entry.method] = run.metrics.values("accuracy", split="val").mean()
    print(f"{entry.method:7} validation accuracy {means[entry.method]:.3f}")
print(f"take {max(means, key=means.__getitem__)}")

figure, axes = plt.subplots(figsize=(5, 3.6))
clients = advice.diagnosis.clients()
axes.bar(range(len(clients)), clients["gain"])
axes.axhline(0, color="gray", linewidth=1)
axes.set(xlabel="client", ylabel="gain from sharing, as the probe sees it")
figure.tight_layout()
figure.savefig("diagnose_first.png", dpi=120)
