"""FineTune: FedAvg, then a little training on each client's own data."""

from typing import Any, ClassVar

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import SGD, About, Inbox, LocalTrainer, Predictor, hyperparameters


@hyperparameters
class FineTune(FedAvg):
    """Fine-tuning of the global model (baseline of Mansour et al. 2020, section 6).

        v_i = SGD(theta^T; D_i)

    after FedAvg; nothing travels in the second phase, and clients that never took part do the same.
    """

    about: ClassVar[About] = About(
        name="finetune",
        paper="Mansour et al. 2020, Three Approaches for Personalization with Applications to Federated Learning",
        down="1 model",
        up="1 model",
        keeps="nothing",
        unseen="the global model, fine-tuned on its own data",
        sees="sums",
    )

    tune: SGD = SGD(lr=0.005, batch_size=10)
    """The final local training (Mansour et al.: one epoch, batch 10, learning rate 0.005)."""

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return local.sgd(inbox["model"][0], self.tune)
