"""All that one probe says of a population.

It is a table of clients, a table of pairs, and a few sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedtailor.aggregation import Probe, user_centric_weights
from fedtailor.aggregation.distances import Rows
from fedtailor.decision import holm
from fedtailor.diagnosis.bounds import effective_samples
from fedtailor.diagnosis.divergences import (
    InputDifferences,
    LabelDifferences,
    input_differences,
    label_differences,
)
from fedtailor.diagnosis.gradients import Homogeneity, gradient_traces, homogeneity
from fedtailor.diagnosis.uncertainty import (
    PersonalizationGain,
    personalization_gain,
    variance_between,
)
from fedtailor.protocol import require

if TYPE_CHECKING:
    import polars as pl

What = Literal["gradients", "labels", "inputs"]
"""In what two clients may be told apart."""

ALPHA = 0.05
"""Level of the tests that sentences rest on, over all pairs of clients (Holm)."""

RESTS_ON = {
    "samples": "training samples",
    "effective_samples": "UCFL's weights (eq. 9): 1 / sum of w^2 / n",
    "gain": (
        "gradients at one model, taken for models learned alone: a curvature of 1 in"
        " all directions; Self-FL's Gaussian model, exact posterior"
    ),
    "strength": "as gain: a pull of Ditto or pFedMe that fits it",
    "group": (
        f"pairs whose gradients a test tells apart at {ALPHA} over all pairs; few"
        " samples tell nobody apart"
    ),
    "gradient_ratio": (
        "distance of gradients at one model over what sampling explains; 1 on average"
        " for equal clients"
    ),
    "gradient_p": (
        "chi^2 of rank 1, adjusted for all pairs (Holm); holds whatever the gradients'"
        " covariance"
    ),
    "label_divergence": (
        "Jensen-Shannon divergence of label histograms, in nats; sampling makes it"
        " larger"
    ),
    "label_p": "G-test, adjusted for all pairs (Holm)",
    "input_difference": (
        "means of features only, in pooled deviations; what sampling adds is taken off"
    ),
    "input_p": (
        "Welch's test of the feature that differs most, adjusted for features and all"
        " pairs"
    ),
}
"""Column -> what its numbers rest on."""


@dataclass(frozen=True)
class Evidence:
    """What clients answer before training, and what is known of their data.

    Attributes:
        names: of the clients [m].
        sizes: [m] training samples.
        gradients: [m, d] of the mean loss over training samples, at one model.
        sigma2: [m] mean squared distance of batches' gradients to the full one.
        batch_sizes: [m] samples in such a batch.
        label_counts: [m, classes] training samples of each class, where there are
            classes.
        feature_means, feature_squares: [m, features] means of features and of their
            squares, where known.
    """

    names: Sequence[str]
    sizes: Int[np.ndarray, " m"]
    gradients: Float[Rows, "m d"]
    sigma2: Float[np.ndarray, " m"]
    batch_sizes: Int[np.ndarray, " m"]
    label_counts: Int[np.ndarray, "m classes"] | None = None
    feature_means: Float[np.ndarray, "m features"] | None = None
    feature_squares: Float[np.ndarray, "m features"] | None = None

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if values is not None:
                require(
                    len(values) == len(self.names),
                    f"{name} holds {len(values)} clients, and there are"
                    f" {len(self.names)} names",
                )
        both = (self.feature_means is None) == (self.feature_squares is None)
        require(
            both, "give the features' means and the means of their squares, or neither"
        )
        require(
            len(self.names) > 1,
            "one client alone cannot be compared with others; give two or more",
        )


@dataclass(frozen=True)
class Diagnosis:
    """What the evidence says.

    Attributes:
        evidence: what it rests on.
        gradients: pairs compared by gradients.
        labels, inputs: pairs compared by labels and by inputs, where these are known.
        weights: [m, m] UCFL's rows of weights.
        gain: who gains from sharing.
        groups: [m] labels of groups within which no pair is told apart.
    """

    evidence: Evidence
    gradients: Homogeneity
    labels: LabelDifferences | None
    inputs: InputDifferences | None
    weights: Float[np.ndarray, "m m"]
    gain: PersonalizationGain
    groups: Int[np.ndarray, " m"]

    def clients(self) -> "pl.DataFrame":
        """A line for each client.

        The columns are `client`, `samples`, `effective_samples`, `gain`, `strength` and
        `group`; see `RESTS_ON`.
        """
        import polars as pl

        sizes = self.evidence.sizes
        return pl.DataFrame(
            {
                "client": list(self.evidence.names),
                "samples": sizes,
                "effective_samples": effective_samples(self.weights, sizes),
                "gain": self.gain.gain,
                "strength": self.gain.strength,
                "group": self.groups,
            }
        )

    def pairs(self) -> "pl.DataFrame":
        """A line for each pair.

        The columns are `client`, `other`, `gradient_ratio`, `gradient_p`, and, where
        known, `label_divergence`, `label_p`, `input_difference` and `input_p`; see
        `RESTS_ON`.
        """
        import polars as pl

        names = np.array(self.evidence.names, object)
        first, second = np.triu_indices(len(names), 1)
        columns = {
            "gradient_ratio": self.gradients.ratio[first, second],
            "gradient_p": self.told_apart("gradients"),
        }
        if self.labels is not None:
            columns["label_divergence"] = self.labels.divergence[first, second]
            columns["label_p"] = self.told_apart("labels")
        if self.inputs is not None:
            columns["input_difference"] = self.inputs.standardized[first, second]
            columns["input_p"] = self.told_apart("inputs")
        return pl.DataFrame(
            {"client": list(names[first]), "other": list(names[second]), **columns}
        )

    def told_apart(self, what: What) -> NDArray[np.float64]:
        """p-values of the pairs, adjusted for all of them.

        Returns:
            [m (m - 1) / 2] in the order of `pairs`; empty where labels or inputs are
            not known.
        """
        above = np.triu_indices(len(self.evidence.names), 1)
        if what == "gradients":
            return self.gradients.p_holm[above]
        compared = self.labels if what == "labels" else self.inputs
        return np.zeros(0) if compared is None else holm(compared.p[above])

    def sentences(self) -> list[str]:
        """What a person wants to know.

        In this order: do clients differ, in what, who resembles whom, who gains.
        """
        sentences = [self._in_data(), self._in_gradients()]
        sentences += [self._of_groups(), self._of_gain()]
        return [sentence for sentence in sentences if sentence]

    def _in_data(self) -> str:
        compared: tuple[What, ...] = ("labels", "inputs")
        parts = []
        for what in compared:
            p = self.told_apart(what)
            apart = int((p < ALPHA).sum())
            if len(p):
                parts.append(f"{what} in {apart} of {len(p)} pairs")
        if not parts:
            return ""
        return f"Clients are told apart by their {' and by their '.join(parts)}."

    def _in_gradients(self) -> str:
        p = self.told_apart("gradients")
        apart = p < ALPHA
        if not apart.any():
            return "No pair of clients is told apart by gradients."
        # The pairs that labels or inputs tell apart as well.
        by_data = np.zeros(len(p), bool)
        for what in ("labels", "inputs"):
            values = self.told_apart(what)
            if len(values):
                by_data |= values < ALPHA
        sentence = f"Gradients tell {int(apart.sum())} of {len(p)} pairs apart"
        beyond = int((apart & ~by_data).sum())
        if self.labels is not None and self.inputs is not None and beyond:
            return (
                f"{sentence}, {beyond} of which neither labels nor inputs do: like"
                " inputs seem to be labelled unlike."
            )
        return f"{sentence}."

    def _of_groups(self) -> str:
        sizes = np.bincount(self.groups)
        if len(sizes) == 1:
            return ""
        sizes_of_own = zip(self.evidence.names, sizes[self.groups], strict=True)
        alone = [name for name, size in sizes_of_own if size == 1]
        if len(alone) == len(self.groups):
            return (
                "Every client is told apart from every other one: there are no groups."
            )
        sentence = f"There are {len(sizes)} groups within which no pair is told apart"
        if not alone:
            return f"{sentence}."
        names = ", ".join(alone[:3])
        if len(alone) > 3:
            names += f" and {len(alone) - 3} more"
        return f"{sentence}; {names} {'stand' if len(alone) > 1 else 'stands'} alone."

    def _of_gain(self) -> str:
        gain = self.gain.gain
        low, median, high = gain.min(), np.median(gain), gain.max()
        return (
            f"Sharing would make clients as sure of their models as {low:.3g} to"
            f" {high:.3g} times their samples (median {median:.3g}), if models behaved"
            " like means."
        )


def diagnose(evidence: Evidence) -> Diagnosis:
    """All calculators that need one probe and no trained model.

    Raises:
        ValueError: no client has samples for two batches, or a client's gradients do
            not vary at all.
    """
    sizes = np.asarray(evidence.sizes)
    traces = gradient_traces(
        np.asarray(evidence.sigma2, np.float64), np.asarray(evidence.batch_sizes), sizes
    )
    compared = homogeneity(evidence.gradients, traces, sizes)
    # The variance of each client's gradient. Where a single batch says nothing of it,
    # the median of the others stands in.
    noise = np.where(np.isnan(traces), np.nanmedian(traces), traces) / sizes
    still = np.flatnonzero(noise <= 0)
    if len(still):
        raise ValueError(
            f"the gradients of client {evidence.names[int(still[0])]!r} do not vary"
            " between batches; are all its rows the same?"
        )
    gradients = np.asarray(evidence.gradients, np.float64)
    labels, inputs = None, None
    if evidence.label_counts is not None:
        labels = label_differences(evidence.label_counts)
    means, squares = evidence.feature_means, evidence.feature_squares
    if means is not None and squares is not None:
        inputs = input_differences(means, squares, sizes)
    weights = user_centric_weights(Probe(gradients, np.asarray(evidence.sigma2), sizes))
    gain = personalization_gain(noise, variance_between(gradients, noise), "exact")
    return Diagnosis(
        evidence, compared, labels, inputs, weights, gain, compared.groups(ALPHA)
    )
