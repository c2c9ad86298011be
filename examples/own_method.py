"""A method in one file.

A method is a few functions, written for one client. This one trains as FedAvg does;
afterwards every client predicts with a mixture of the common model and of a copy that
it fine-tuned. The command line takes the file as it is: `fedtailor run
own_method.py:Blend digits-rotated --share 0.3`.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import matplotlib.pyplot as plt

import fedtailor as ft
from fedtailor.protocol import (
    About,
    Inbox,
    LocalTrainer,
    Mixture,
    Predictor,
    hyperparameters,
)


@hyperparameters
class Blend(ft.FedAvg):
    """A mixture of the common model and its fine-tuned copy."""

    about: ClassVar[About] = About(
        name="blend",
        paper="an example of the gallery",
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="as everybody else",
    )

    tune: ft.SGD = ft.SGD(lr=0.05, epochs=5, batch_size=16)
    """The fine-tuning, on the client's own rows."""
    share: float = 0.5
    """Weight of the fine-tuned model, in [0, 1]."""

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        common = inbox.only("model")
        own = local.sgd(common, self.tune)
        weights = jnp.stack([self.share, 1 - self.share]).astype(common.dtype)
        return Mixture(weights, jnp.stack([own, common]))


def run() -> None:
    federation = ft.scenarios.digits_permuted(seed=0)
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    means = []
    for share in shares:
        method = Blend(share=share, sgd=ft.SGD(lr=0.05, epochs=2, batch_size=16))
        trained = ft.run(method, federation, ft.models.mlp(hidden=64), rounds=10)
        means.append(trained.summary().mean)
        print(f"share {share:4.2f}  mean accuracy {means[-1]:.3f}")
    figure, axes = plt.subplots(figsize=(5, 3.6))
    axes.plot(shares, means, "o-")
    axes.set(xlabel="share of the fine-tuned model", ylabel="mean test accuracy")
    figure.tight_layout()
    figure.savefig("own_method.png", dpi=120)


if __name__ == "__main__":
    run()
