"""The methods that a comparison speaks of by name: which are compared unless others are
named, what a client uses, and what a method is, in one line each; and what clients are
called.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedtailor.algorithms.find import find_algorithm
from fedtailor.protocol import About

LOCAL_METHOD = "local"
"""The method that trains every client alone."""


@dataclass(frozen=True)
class Nouns:
    """What the clients of a table are called, such as "hospital" and "hospitals"."""

    one: str = "client"
    many: str = "clients"

    def counted(self, number: int) -> str:
        """A number of them: "4 hospitals"."""
        return f"{number} {self.one if number == 1 else self.many}"

    def said(self, text: str) -> str:
        """A text about clients with this noun instead of theirs."""
        return re.sub(r"\bclient\b", lambda _: self.one, text)


def nouns_of(column: str) -> Nouns:
    """The nouns that follow from the name of the column of clients.

    Names that are not a plain English word in the singular leave it at "client".
    """
    one = column.lower()
    if not re.fullmatch(r"[A-Za-z]?[a-z]{2,}", column) or one.endswith(("s", "id")):
        return Nouns()
    if re.search(r"[^aeiou]y$", one):
        return Nouns(one, f"{one[:-1]}ies")
    if one.endswith(("x", "ch", "sh")):
        return Nouns(one, f"{one}es")
    return Nouns(one, f"{one}s")


@dataclass(frozen=True)
class MethodWords:
    """A method in words.

    Attributes:
        use: what a client that uses it predicts with, short enough for a table.
        sentence: what it is, without a full stop.
        is_default: whether `compare TABLE` trains it unless other methods are named.
    """

    use: str
    sentence: str
    is_default: bool = True


WORDS: Mapping[str, MethodWords] = {
    "local": MethodWords(
        "own model, alone",
        "each client trains alone, on its own rows; nothing is sent",
    ),
    "fedavg": MethodWords(
        "shared model",
        "one shared model for all, averaged from what each client trains",
    ),
    "finetune": MethodWords(
        "shared, tuned",
        "the shared model, trained a little further on each client's own rows",
    ),
    "mr-mtl": MethodWords(
        "own correction",
        "each client's own model, kept near the mean of all",
        is_default=False,
    ),
    "ditto": MethodWords(
        "own correction",
        "the shared model with each client's own correction, kept near it",
    ),
    "self-fl": MethodWords(
        "own, with others",
        "each client's own model; how far it leaves the shared one follows from how sure"
        " both are",
    ),
    "ucfl": MethodWords(
        "own mix of all",
        "for each client a mix of all models, weighted by who resembles whom",
    ),
}
"""Method -> its words, from the simplest method on; all others are less simple."""

BASELINE_WORDS: Mapping[str, MethodWords] = {
    "linear-alone": MethodWords(
        "own regression",
        "each client fits ridge or logistic regression to its own rows; nothing is sent",
    ),
    "mixed": MethodWords(
        "mixed model",
        "a linear model whose coefficients differ between clients at random; it is fitted"
        " in one process, not over machines",
    ),
    "cox-alone": MethodWords(
        "own Cox model",
        "each client fits Cox's model to its own rows; nothing is sent",
    ),
    "cox-stratified": MethodWords(
        "shared Cox model",
        "Cox's model from sums over clients, with each client's own baseline hazard; it is"
        " fitted in one process, not over machines",
    ),
    "trees-alone": MethodWords(
        "own trees, alone",
        "each client boosts trees on its own rows; nothing is sent",
    ),
    "trees-federated": MethodWords(
        "shared or own trees",
        "trees boosted on sums over clients, then trees of a client's own where its"
        " validation rows say so",
    ),
    "trees-personal": MethodWords(
        "shared, own trees",
        "trees boosted on sums over clients, which may split by client, then each"
        " client's own trees; boosted in one process, not over machines",
    ),
}
"""The same of what is trained beside the methods and can be used as they are; it is less
simple than they are."""

DEFAULT_METHODS = tuple(name for name, words in WORDS.items() if words.is_default)
"""What `compare TABLE` trains unless other methods are named."""


def use_of(method: str) -> str:
    """What a client that uses a method predicts with."""
    words = WORDS.get(method) or BASELINE_WORDS.get(method)
    if words is not None:
        return words.use
    about = _about(method)
    if about is None:
        return method
    if about.models_received == "nothing":
        return f"own model ({method})"
    if about.models_received == "one model" and about.client_keeps == "nothing":
        return f"shared ({method})"
    return f"own ({method})"


def sentence_of(method: str) -> str:
    """One sentence on what a method is, without a full stop."""
    words = WORDS.get(method) or BASELINE_WORDS.get(method)
    if words is not None:
        return words.sentence
    about = _about(method)
    if about is None:
        return "a method of your own"
    return (
        f"a client receives {about.down}, sends {about.up}, keeps"
        f" {about.client_keeps} ({about.paper.split(',')[0]})"
    )


def _about(method: str) -> About | None:
    """The description of a method; None if it is not installed here."""
    try:
        return find_algorithm(method).about
    except ValueError:
        return None
