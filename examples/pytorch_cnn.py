"""A PyTorch network with batch normalisation.

The module is written in plain PyTorch and converted. Clients see digits in different
brightness and contrast, which normalisation layers can take out: FedBN leaves these
layers with the clients and averages the rest. A client's model goes back to PyTorch.

It needs the extra `torch`.
"""

import importlib.util
import sys

import matplotlib.pyplot as plt
import numpy as np

import fedtailor as ft

if importlib.util.find_spec("torch") is None:
    sys.exit("skipped: pip install 'fedtailor[torch]'")

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(72, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.head(x.flatten(1))


# Ten clients, each with its own contrast and brightness.
digits = ft.scenarios.digits_label_shift(seed=0, clients=10, alpha=5.0)
rng = np.random.default_rng(0)
parts = []
for number, client in enumerate(digits):
    contrast, brightness = rng.uniform(0.2, 3), rng.uniform(-8, 8)
    for split in (client.train, client.test):
        x = (split.x * contrast + brightness).astype(np.float32)
        parts.append((x, split.y, np.full(len(x), number)))
x, y, client = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
federation = ft.federation.from_arrays(x, y, client, test=0.3, scale=0.1)

torch.manual_seed(0)
net = ft.models.from_torch(Net, torch.zeros(1, 1, 8, 8))
sgd = ft.SGD(lr=0.05, epochs=2, batch_size=16)
for method in (ft.Local(sgd=sgd), ft.FedAvg(sgd=sgd), ft.FedBN(sgd=sgd)):
    run = ft.run(method, federation, net, rounds=10)
    summary = run.summary()
    print(
        f"{summary.algorithm:7} mean accuracy {summary.mean:.3f},"
        f" worst client {summary.worst:.3f}"
    )
    plt.plot(np.sort(run.metrics.values("accuracy")), "o-", label=summary.algorithm)

own = run.personal(3)
ft.models.save_state_dict(own.model, own.predictor, "client-3.safetensors")
print("client-3.safetensors: a state dict that plain PyTorch reads")

plt.legend()
plt.xlabel("clients, ordered by accuracy")
plt.ylabel("test accuracy")
plt.tight_layout()
plt.savefig("pytorch_cnn.png", dpi=120)
