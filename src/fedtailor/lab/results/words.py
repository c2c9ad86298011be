"""Methods in words: what a client uses, and what a method is, in one line each."""

from fedtailor.algorithms.find import find_algorithm
from fedtailor.protocol import About

USES = {
    "local": "own model, alone",
    "fedavg": "shared model",
    "finetune": "shared, tuned",
    "ditto": "own correction",
    "mr-mtl": "own correction",
    "self-fl": "own, with others",
    "ucfl": "own mix of all",
}
"""Method -> what a client that uses it predicts with, short enough for a table."""

SENTENCES = {
    "local": "each client trains alone, on its own rows; nothing is sent",
    "fedavg": "one shared model for all, averaged from what each client trains",
    "finetune": "the shared model, trained a little further on each client's own rows",
    "ditto": "the shared model with each client's own correction, kept near it",
    "mr-mtl": "each client's own model, kept near the mean of all",
    "self-fl": "each client's own model; how far it leaves the shared one follows from"
    " how sure both are",
    "ucfl": "for each client a mix of all models, weighted by who resembles whom",
}
"""Method -> one sentence on what it is."""


def use_of(method: str) -> str:
    """What a client that uses a method predicts with."""
    if method in USES:
        return USES[method]
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
    if method in SENTENCES:
        return SENTENCES[method]
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
