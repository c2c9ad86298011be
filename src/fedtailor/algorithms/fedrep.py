"""FedRep: each client's own head, then the shared body, one after the other."""

from typing import ClassVar

from jaxtyping import Array, Float

from fedtailor.algorithms.fedper import FedPer
from fedtailor.protocol import SGD, About, LocalTrainer, ModelPart, hyperparameters


@hyperparameters
class FedRep(FedPer):
    """Exploiting shared representations (Collins et al. 2021, algorithm 1).

    As FedPer, but a client first trains its head on the received body, then the body
    below that head:

        h_i <- SGD(h_i; b, D_i)  for tau_h epochs,    b_i <- SGD(b; h_i, D_i)  for tau_b epochs,    b <- sum_i q_i b_i

    The part that is not trained does not change by a bit. Both trainings use the same
    batches. The released code's `local_ep` is the sum of both numbers of epochs, which
    are separate here. A client that never took part trains a head for tau_h epochs.

    The released code also decays weights (not biases) by 0.0001, and gives clients of
    CIFAR and MNIST equal weights. It prints the mean accuracy of the last ten rounds,
    where clients predict with the head that they trained last, as here, and the
    accuracy after training all heads for 10 more epochs on the final body. With PyTorch
    before 2.0 its momentum still moves the head while the body is trained.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedrep",
        paper=(
            "Collins et al. 2021, Exploiting Shared Representations for Personalized"
            " Federated Learning"
        ),
        down="1 body",
        up="1 body",
        client_keeps="its head",
        unseen_clients_get="trains a head on the shared body",
        models_received="a part",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.5, epochs=1, batch_size=10)
    """Training of the body, tau_b epochs (the paper: 1 epoch, or 5 where clients have
    more than 2 classes).
    """
    head: SGD = SGD(lr=0.01, momentum=0.5, epochs=10, batch_size=10)
    """Training of the head, tau_h epochs (the paper: 10)."""

    def _train(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        # algorithm 1: the head first, on the received body; then the body, below the
        # head just trained
        theta = local.sgd(theta, self.head, train_only=own)
        return local.sgd(theta, self.sgd, train_only=own.complement)

    def _train_newcomer(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        return local.sgd(theta, self.head, train_only=own)
