"""The public experiments of Self-FL.

Chen et al. 2022, Self-Aware Personalized Federated Learning, section 4. Self-FL takes
at most 40 local steps, all other methods a fixed number (section 4.2). The appendix
with the settings of the Gaussian task and of Sent140 was not available: these are
choices of this library.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

import fedtailor.algorithms as methods
from fedtailor._base.choice import require
from fedtailor.data.federation import (
    ClassesPerClient,
    Federation,
    LogNormal,
    Natural,
    Uniform,
    datasets,
    from_partition,
)
from fedtailor.lab.scenarios.common import PFEDME_SIZES, subsample
from fedtailor.lab.scenarios.scenario import Scenario, defaults_with
from fedtailor.models import density, logistic, lstm, tutorial_cnn
from fedtailor.protocol import SGD, Algorithm

LETTERS = range(36, 46)
"""EMNIST's classes of the letters a to j."""
BUCKETS = 1024
"""Hash buckets of the words of tweets."""


def mnist_two_digits(
    seed: int = 0,
    *,
    clients: int = 1000,
    points: int | None = None,
    test: float = 0.1,
    val: float = 0.0,
) -> Federation:
    """Digits by the rule of FedProx: client i holds i and i + 1 (modulo 10), with
    log-normal shares of their images.

    Args:
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        points: images of all clients together; None = all 70,000.
        test, val: fractions of each client's images.

    Raises:
        ValueError: the sizes are impossible, or MNIST is missing.
    """
    data = subsample(datasets.mnist(), points, seed)
    partition = ClassesPerClient(
        clients,
        2,
        LogNormal(0, 2),
        each_class=True,
        use_all=True,
        min_samples=5,
        stride=1,
    )
    return from_partition(
        data, partition, test=test, val=val, name="mnist-two-digits", seed=seed
    )


def femnist_letters(
    seed: int = 0,
    *,
    clients: int = 200,
    points: int | None = None,
    test: float = 0.1,
    val: float = 0.0,
) -> Federation:
    """Letters a to j by the rule of FedProx: client i holds letters i to i + 4 (modulo
    10), sizes are log-normal.

    The letters are those of EMNIST's published test file, 317 (j) to 4,092 (e) of each.
    They are fewer than the rule asks for; where they do not suffice, all clients of a
    letter get the same share of what they would have. The released script lets clients
    share images; here they do not.

    Args:
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        points: letters of all clients together; None = all 11,916.
        test, val: fractions of each client's letters.

    Raises:
        ValueError: the sizes are impossible, or EMNIST is missing.
    """
    data = subsample(datasets.emnist("byclass", "test").only(LETTERS), points, seed)
    partition = ClassesPerClient(
        clients, 5, LogNormal(4, 1, offset=5), min_samples=2, stride=1
    )
    return from_partition(
        data, partition, test=test, val=val, name="femnist-letters", seed=seed
    )


def cifar_three_classes(
    seed: int = 0,
    *,
    clients: int = 20,
    points: int | None = None,
    test: float = 0.25,
    val: float = 0.0,
) -> Federation:
    """Images by the rule of pFedMe: client i holds classes i to i + 2 (modulo 10),
    sizes are log-normal with a floor.

    All images are dealt, in proportion to draws from LogNormal(0, 2) plus 3 (see
    `PFEDME_SIZES`).

    Args:
        seed: random seed of the points, the partition and the splits.
        clients: number of clients.
        points: images of all clients together; None = all 60,000.
        test, val: fractions of each client's images.

    Raises:
        ValueError: the sizes are impossible, or CIFAR-10 is missing.
    """
    data = subsample(datasets.cifar10(), points, seed)
    partition = ClassesPerClient(
        clients, 3, PFEDME_SIZES, each_class=True, use_all=True, stride=1
    )
    return from_partition(
        data, partition, test=test, val=val, name="cifar-three-classes", seed=seed
    )


def sent140(
    seed: int = 0, *, clients: int = 772, test: float = 0.2, val: float = 0.0
) -> Federation:
    """Tweets by their users, positive or negative: of each the first 25 words, as token
    ids.

    The 772 users of FedProx have 30 tweets or more. The clients here are those with the
    most tweets in the data directory (in the shared subset of the data, with 3 to 17).

    Args:
        seed: random seed of the splits.
        clients: number of users; those with the most tweets are used.
        test, val: fractions of each user's tweets.

    Raises:
        ValueError: the sizes are impossible, or Sentiment140 is missing.
    """
    return _tweets("tokens", seed, clients, test, val)


def sent140_words(
    seed: int = 0, *, clients: int = 772, test: float = 0.2, val: float = 0.0
) -> Federation:
    """The tweets of `sent140` as bags of words, for a linear model.

    Args:
        seed: random seed of the splits.
        clients: number of users; those with the most tweets are used.
        test, val: fractions of each user's tweets.

    Raises:
        ValueError: the sizes are impossible, or Sentiment140 is missing.
    """
    return _tweets("words", seed, clients, test, val)


def spoken_wake_word(
    seed: int = 0, *, digit: int = 7, test: float = 0.3, val: float = 0.0
) -> Federation:
    """One spoken digit against the other nine, by six speakers with 500 recordings each.

    It stands in for the wake words of the paper, which are private: five clients with a
    type of device each, whose numbers of recordings differ.

    Args:
        seed: random seed of the splits.
        digit: the wake word, 0 to 9.
        test, val: fractions of each speaker's recordings.

    Raises:
        ValueError: the digit or the fractions are impossible, or the data are missing.
    """
    require(0 <= digit <= 9, f"digit is {digit}; it must be from 0 to 9")
    data = datasets.spoken_digits()
    is_word = (data.y == digit).astype(np.int64)
    words = replace(data, y=is_word, classes=2, class_names=("absent", "detected"))
    return from_partition(
        words, Natural(), test=test, val=val, name="spoken-wake-word", seed=seed
    )


def _tweets(
    features: Literal["words", "tokens"],
    seed: int,
    clients: int,
    test: float,
    val: float,
) -> Federation:
    """The tweets of the users with the most of them."""
    data = datasets.sent140(features, buckets=BUCKETS)
    rows = Natural().named(data)
    require(
        1 <= clients <= len(rows),
        f"clients is {clients}; {data.name} has {len(rows)} users",
    )
    users = sorted(rows, key=lambda user: -len(rows[user]))[:clients]
    data = data.take(np.concatenate([rows[user] for user in users]))
    return from_partition(
        data, Natural(), test=test, val=val, name=f"sent140 ({features})", seed=seed
    )


def gaussian(
    seed: int = 0,
    *,
    clients: int = 20,
    sigma_0: float = 1.0,
    sigma: float = 1.0,
    low: int = 10,
    high: int = 100,
    val: float = 0.0,
) -> Federation:
    """Scalars from the two-level Gaussian model (section 2.1); every client estimates
    the mean of its own.

    Args:
        seed: random seed of the data and the splits.
        clients: number of clients.
        sigma_0: standard deviation between clients (large: heterogeneous clients).
        sigma: standard deviation within a client.
        low, high: least and greatest number of a client's samples (the paper varies
            them and does not print them).
        val: fraction of the samples for validation.

    Raises:
        ValueError: the sizes are impossible.
    """
    sizes = Uniform(low, high)
    return datasets.gaussian(
        clients=clients, sigma_0=sigma_0, sigma=sigma, sizes=sizes, val=val, seed=seed
    )


def _settings(local: SGD, warm: int = 0) -> dict[str, Algorithm]:
    """Self-FL with its published settings.

    Non-convex models first train `warm` rounds by FedAvg.
    """
    return {"self-fl": methods.SelfFL(sgd=local, l_max=40, warm=warm)}


MNIST = SGD(lr=0.03, steps=20, batch_size=10)
LETTER = SGD(lr=0.01, steps=20, batch_size=10)
CIFAR = SGD(lr=0.01, steps=40, batch_size=10)
TWEETS = SGD(lr=0.1, steps=20, batch_size=10)
SCALARS = SGD(lr=0.05, steps=20, batch_size=100)

SOURCE = "Chen et al. 2022, section 4"
SCENARIOS = (
    Scenario(
        "mnist-two-digits",
        "digits over 1,000 clients, two classes each, heavy-tailed sizes",
        mnist_two_digits,
        logistic(),
        200,
        _settings(MNIST),
        defaults_with(MNIST),
        participation=0.1,
        source=SOURCE,
        data="MNIST",
    ),
    Scenario(
        "femnist-letters",
        "letters a to j over 200 clients, five classes each, sizes log-normal",
        femnist_letters,
        logistic(),
        200,
        _settings(LETTER),
        defaults_with(LETTER),
        participation=0.1,
        source=SOURCE,
        data="EMNIST",
    ),
    Scenario(
        "cifar-three-classes",
        "images over 20 clients, three classes each, sizes log-normal",
        cifar_three_classes,
        tutorial_cnn(),
        200,
        _settings(CIFAR, warm=20),
        defaults_with(CIFAR),
        participation=0.25,
        source=SOURCE,
        data="CIFAR-10",
    ),
    Scenario(
        "sent140",
        "sentiment of tweets as sequences of words, over 772 users",
        sent140,
        lstm(BUCKETS + 1, layers=2),
        200,
        _settings(TWEETS, warm=20),
        defaults_with(TWEETS),
        participation=0.1,
        source=SOURCE,
        data="Sent140",
    ),
    Scenario(
        "sent140-words",
        "sentiment of tweets as bags of words, over 772 users",
        sent140_words,
        logistic(),
        200,
        _settings(TWEETS),
        defaults_with(TWEETS),
        participation=0.1,
        source=SOURCE,
        data="Sent140",
    ),
    Scenario(
        "spoken-wake-word",
        "one spoken digit against the rest, spectrograms by six speakers",
        spoken_wake_word,
        tutorial_cnn(),
        60,
        _settings(CIFAR, warm=20),
        defaults_with(CIFAR),
        source=SOURCE,
        data="spoken digits",
    ),
    Scenario(
        "gaussian",
        "20 clients estimate means drawn from a two-level Gaussian model",
        gaussian,
        density(),
        50,
        {"self-fl": methods.SelfFL(sgd=SCALARS, l_max=40, curvature=2.0)},
        defaults_with(SCALARS),
        source=SOURCE,
    ),
)
