"""Clients that arrive after training.

Four of twenty clients never train. What a newcomer gets depends on the method: the
common model, a copy fine-tuned on its own rows, or the model of those whom it
resembles. The last lines serve a client that was not even known when training began.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedtailor as ft

# Four of twenty clients, one of each group, do not train.
everybody = ft.scenarios.digits_rotated(seed=0)
groups = [client.group for client in everybody]
newcomers = [groups.index(group) for group in sorted(set(groups))]


def pixels(split):
    """The images of a split, as the models see them."""
    return ((split.x - everybody.shift) * everybody.scale).astype(np.float32)


splits = [(c.name, c.group, s) for c in everybody for s in (c.train, c.test)]
federation = ft.federation.from_arrays(
    np.concatenate([pixels(split) for _, _, split in splits]),
    np.concatenate([split.y for _, _, split in splits]),
    np.concatenate([[name] * len(split.y) for name, _, split in splits]),
    group=np.concatenate([[group] * len(split.y) for _, group, split in splits]),
    unseen=[everybody.names[number] for number in newcomers],
)

sgd = ft.SGD(lr=0.05, momentum=0.9, epochs=5, batch_size=16)
methods = {
    "common model": ft.FedAvg(sgd=sgd),
    "fine-tuned": ft.FineTune(sgd=sgd),
    "nearest group": ft.UCFL(sgd=sgd, streams=4),
}
means = {}
for name, method in methods.items():
    run = ft.run(method, federation, ft.models.mlp(hidden=64), rounds=25)
    summary = run.summary()
    means[name] = (summary.mean, summary.unseen_mean)
    print(f"{name:14} trained {summary.mean:.3f}, arrived later {means[name][1]:.3f}")

for number in newcomers:
    client = everybody.client(number)
    own = run.enroll(pixels(client.train), client.train.y, name=f"client {number}")
    correct = (own.predict(pixels(client.test)) == client.test.y).mean()
    print(f"enrolled {own.name}: accuracy {correct:.3f} on {len(client.test.y)} images")

figure, axes = plt.subplots(figsize=(6, 3.6))
for shift, label in enumerate(("clients that trained", "clients that arrived later")):
    axes.bar(
        [place + 0.4 * shift for place in range(len(means))],
        [pair[shift] for pair in means.values()],
        width=0.4,
        label=label,
    )
axes.set_xticks([place + 0.2 for place in range(len(means))], list(means))
axes.set(ylabel="mean test accuracy", ylim=(0.5, 1))
axes.legend()
figure.tight_layout()
figure.savefig("unseen_clients.png", dpi=120)
