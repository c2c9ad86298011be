"""FedAdam, FedYogi and FedAdagrad: FedAvg with an adaptive server optimiser."""

from typing import ClassVar

from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import SGD, About, hyperparameters

_PAPER = "Reddi et al. 2021, Adaptive Federated Optimization"


@hyperparameters
class FedAdam(FedAvg):
    """FedAvg with Adam on the server (Reddi et al. 2021, algorithm 2, FedAdam).

    The server takes Delta = theta - sum_i q_i theta_i for a gradient:

        m <- b1 m + (1 - b1) Delta,    v <- b2 v + (1 - b2) Delta^2,    theta <- theta - lr m / (sqrt(v) + tau)

    with b1, b2, tau = `momentum`, `second_moment`, `epsilon` of the optimizer and m, v
    corrected for their start at 0 (optax). A rate and tau that are both very large,
    with b1 = 0, are FedAvg.

    Algorithm 2 does not correct the moments, and starts v at tau^2: its first step is
    (1 - b1) / sqrt(1 - b2) times as long, and after a few rounds the models are 10 to
    25 % of the way apart. `ServerOptimizer("adam", paper=True)` is algorithm 2 (on the
    command line `--optimizer.paper`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedadam",
        paper=_PAPER,
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.03, epochs=1, batch_size=20)
    """Local training (Reddi et al.: an epoch a round in batches of 20; its rate is
    tuned).
    """
    optimizer: ServerOptimizer = ServerOptimizer("adam", lr=0.1)
    """The server's step (Reddi et al.: b1 0.9, b2 0.99, tau 0.001; the rate is tuned
    with the clients').
    """


@hyperparameters
class FedYogi(FedAvg):
    """FedAvg with Yogi on the server (Reddi et al. 2021, algorithm 2, FedYogi).

    As FedAdam, but a step changes the second moment by at most (1 - b2) Delta^2, so
    that it stays large after a round of small updates:

        v <- v - (1 - b2) Delta^2 sign(v - Delta^2)

    with m and v starting at 1e-6 and corrected for their start (optax).
    `ServerOptimizer("yogi", paper=True)` is algorithm 2, with m = 0 and v = tau^2 at
    first and no correction.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedyogi",
        paper=_PAPER,
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.03, epochs=1, batch_size=20)
    """Local training (Reddi et al.: an epoch a round in batches of 20; its rate is
    tuned).
    """
    optimizer: ServerOptimizer = ServerOptimizer("yogi", lr=0.1)
    """The server's step (Reddi et al.: b1 0.9, b2 0.99, tau 0.001; the rate is tuned
    with the clients').
    """


@hyperparameters
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad on the server (Reddi et al. 2021, algorithm 2, FedAdagrad).

    The server takes Delta = theta - sum_i q_i theta_i for a gradient, without momentum
    (b1 = 0):

        v <- v + Delta^2  (v = tau^2 at first),    theta <- theta - lr Delta / sqrt(v)

    with tau = `epsilon` of the optimizer. (The paper divides by sqrt(v) + tau; optax,
    from which the rule comes, has no second tau; `paper=True` of the optimizer has.) Steps get shorter from round to
    round, as those of Adagrad do.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedadagrad",
        paper=_PAPER,
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.03, epochs=1, batch_size=20)
    """Local training (Reddi et al.: an epoch a round in batches of 20; its rate is
    tuned).
    """
    optimizer: ServerOptimizer = ServerOptimizer("adagrad", lr=0.1)
    """The server's step (Reddi et al.: tau 0.001; the rate is tuned with the clients').
    """
