"""A transformer trained on plays, adapted to roles of other plays.

A small transformer learns to predict the next character from the lines of most roles. It
is then frozen, and each client is one of the largest roles, of plays that it has not seen.
Low-rank adapters are trained alone, and in six ways together. Each method trains at the
rate that is best on windows for validation. It takes some minutes.
"""

import csv
import gzip
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from scipy.stats import t as student

import fedtailor as ft

FILE = Path(os.environ.get("FEDTAILOR_DATA", "."), "shakespeare-plays", "lines.csv.gz")
if not FILE.exists():
    sys.exit(f"skipped: needs {FILE.name} with the columns play, line, role, text")
ROLES, LENGTH, WIDTH, ROUNDS = 8, 24, 48, 10
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
LETTERS = " abcdefghijklmnopqrstuvwxyz'-,.;:!?"


class Block(eqx.Module):
    """Attention to earlier characters, and a dense layer, each added to its input."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    wide: eqx.nn.Linear
    narrow: eqx.nn.Linear

    def __init__(self, width, key):
        keys = jax.random.split(key, 3)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.attention = eqx.nn.MultiheadAttention(4, width, key=keys[0])
        self.wide = eqx.nn.Linear(width, 4 * width, key=keys[1])
        self.narrow = eqx.nn.Linear(4 * width, width, key=keys[2])

    def __call__(self, h):
        x = jax.vmap(self.norms[0])(h)
        earlier = jnp.tril(jnp.ones((len(h), len(h)), bool))
        h = h + self.attention(x, x, x, earlier)
        x = jax.nn.gelu(jax.vmap(self.wide)(jax.vmap(self.norms[1])(h)))
        return h + jax.vmap(self.narrow)(x)


class Transformer(eqx.Module):
    """Scores of the next character, from the characters before it."""

    letters: eqx.nn.Embedding
    places: eqx.nn.Embedding
    blocks: tuple[Block, Block]
    head: eqx.nn.Linear

    def __init__(self, width, *, key):
        keys = jax.random.split(key, 5)
        self.letters = eqx.nn.Embedding(len(LETTERS), width, key=keys[0])
        self.places = eqx.nn.Embedding(LENGTH, width, key=keys[1])
        self.blocks = (Block(width, keys[2]), Block(width, keys[3]))
        self.head = eqx.nn.Linear(width, len(LETTERS), key=keys[4])

    def __call__(self, x, key=None):
        h = jax.vmap(self.letters)(x) + jax.vmap(self.places)(jnp.arange(LENGTH))
        for block in self.blocks:
            h = block(h)
        return self.head(h[-1])


def windows(text, step):
    """Windows of characters, and the character after each."""
    ids = {letter: number for number, letter in enumerate(LETTERS)}
    codes = np.array([ids[letter] for letter in text.lower() if letter in ids])
    starts = np.arange(0, len(codes) - LENGTH, step)
    x = codes[starts[:, None] + np.arange(LENGTH)]
    return x.astype(np.int32), codes[starts + LENGTH]


with gzip.open(FILE, "rt", encoding="utf-8") as lines:
    spoken = {}
    for line in csv.DictReader(lines):
        spoken.setdefault((line["play"], line["role"]), []).append(line["text"])
largest = sorted(spoken, key=lambda role: -len(spoken[role]))[:ROLES]
others = "\n".join(
    " ".join(spoken[role]) for role in spoken if role[0] not in dict(largest)
)

# 1. The base, from the plays in which none of the clients' roles speaks.
x, y = windows(others, step=37)
library = ft.federation.from_arrays(
    x, y, np.zeros(len(y), int), test=0.05, classes=len(LETTERS)
)
transformer = ft.models.from_equinox(Transformer, WIDTH)
adam = ft.SGD(steps=1500, batch_size=64, optimizer=optax.adam(0.003))
base = ft.run(ft.Local(sgd=adam), library, transformer, rounds=1)
print(f"base: {len(y)} windows, accuracy {base.summary().mean:.3f}")
start = base.model.params(jnp.asarray(base.personal(0).theta))

# 2. The roles: the first 800 windows of each.
parts = [windows(" ".join(spoken[role]), step=11) for role in largest]
names = [f"{role.title()} ({play})" for play, role in largest]
roles = ft.federation.from_arrays(
    np.concatenate([x[:800] for x, _ in parts]),
    np.concatenate([y[:800] for _, y in parts]),
    np.repeat(names, [min(800, len(y)) for _, y in parts]),
    test=0.4,
    val=0.15,
    classes=len(LETTERS),
)
weights = "re:(proj|wide|narrow).weight$"
adapted = ft.models.lora(transformer, 4, weights, start=start)
half = ft.models.lora(transformer, 4, weights, freeze_a=True, start=start)
two = ft.models.lora(transformer, 4, weights, local_rank=4, start=start)
full = ft.models.lora(transformer, 4, weights, local_rank=WIDTH, start=start)
methods = {
    "alone": (ft.Local(), adapted),
    "FedAvg": (ft.FedAvg(), adapted),
    "FFA-LoRA": (ft.FedAvg(), half),
    "FedSA-LoRA": (ft.FedPer(part="lora_b"), adapted),
    "FlexLoRA": (ft.FlexLoRA(ranks=(2, 4)), adapted),
    "FedEx-LoRA": (ft.FedExLoRA(), full),
    "FedDPA": (ft.FedDPA(), two),
}


def run_at(rate, method, model):
    """A run in which clients train at this rate."""
    sgd = ft.SGD(lr=rate, momentum=0.9, steps=20, batch_size=16)
    method = replace(method, sgd=sgd)
    return ft.run(method, roles, model, ROUNDS, evaluate_every=ROUNDS)


def validation_loss(run):
    """The mean over roles, of windows that no training saw and no figure shows."""
    return run.metrics.values("loss", "val").mean()


def perplexity(name):
    """Of the base, for a role: exp of the mean loss of its next characters."""
    test = roles.client(name).test
    p = base.personal(0).probabilities(test.x)
    return np.exp(-np.log(p[np.arange(len(test.y)), test.y]).mean())


before = np.array([perplexity(name) for name in roles.names])
print(f"the base    perplexity {before.mean():.2f}")
place = np.arange(len(roles))
plt.plot(before, place, "k|", markersize=14, label="the base")
alone = None
for number, (name, (method, model)) in enumerate(methods.items()):
    runs = {}
    for rate in RATES:
        with suppress(ft.Diverged):
            runs[rate] = run_at(rate, method, model)
    rate = min(runs, key=lambda rate: validation_loss(runs[rate]))
    run = runs[rate]
    found = np.exp(run.metrics.values("loss"))
    alone = found if alone is None else alone
    # The interval (95 %) of the mean of what roles like these gain over training alone.
    gains = alone - found
    width = student.ppf(0.975, len(roles) - 1) * gains.std(ddof=1) / len(roles) ** 0.5
    print(
        f"{name:11} perplexity {found.mean():.2f}, rate {rate}, gain"
        f" {gains.mean():+.2f} ({gains.mean() - width:+.2f} to {gains.mean() + width:+.2f}),"
        f" {run.summary().bytes_up / len(roles) / ROUNDS / 1024:.0f} KiB up a round"
    )
    plt.plot(found, place + 0.08 * (number - 3), "o", markersize=5, label=name)
print(f"trained: {run.model.size:,} numbers beside {run.model.frozen.size:,} frozen")
plt.yticks(place, roles.names)
plt.grid(axis="y", alpha=0.3)
plt.xlabel("perplexity of the next character")
plt.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncol=3)
plt.tight_layout()
plt.savefig("shakespeare_transformer.png", dpi=120)
