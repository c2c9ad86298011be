"""The diagnosis of a population: tables of clients and of pairs, and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.notebook import html_paragraphs, table_of_frame
from fedtailor.aggregation import Probe, user_centric_weights
from fedtailor.aggregation.clusters import CLEAR, choose_streams, k_means
from fedtailor.aggregation.distances import RowMatrix
from fedtailor.statistics.decision import holm
from fedtailor.statistics.diagnosis.bounds import effective_samples
from fedtailor.statistics.diagnosis.divergences import (
    InputDifferences,
    LabelDifferences,
    input_differences,
    label_differences,
)
from fedtailor.statistics.diagnosis.gradients import (
    Homogeneity,
    batch_sizes,
    gradient_traces,
    homogeneity,
)
from fedtailor.statistics.diagnosis.uncertainty import (
    PersonalizationGain,
    local_variance_between,
    personalization_gain,
)

if TYPE_CHECKING:
    import polars as pl

ComparedQuantity = Literal["gradients", "labels", "inputs"]
"""The quantities that are compared between two clients."""

MAX_COLUMNS = 5
"""The largest number of features that are named."""

ALPHA = 0.05
"""Significance level of the sentences' tests, over all pairs of clients (Holm)."""

KERNEL_SHARE = 1 / 3
"""n_k of UCFL's weights, as a share of a client's samples (Mestoukirdi et al., section V)."""

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
        "F test of rank 1, adjusted for all pairs (Holm); holds whatever the gradients'"
        " covariance, which is estimated from batches"
    ),
    "label_divergence": (
        "Jensen-Shannon divergence of label histograms, in nats; sampling makes it"
        " larger"
    ),
    "label_p": (
        "Pearson's test with the moments of all assignments of a pair's labels, adjusted"
        " for all pairs (Holm)"
    ),
    "input_difference": (
        "means of features only, in pooled deviations; what sampling adds is taken off"
    ),
    "input_p": (
        "Welch's test of the feature that differs most, adjusted for features and all"
        " pairs"
    ),
}
"""Column -> the data and the method that its numbers are based on."""


@dataclass(frozen=True)
class Evidence:
    """What clients report before training, and what is known about their data.

    Attributes:
        names: [m] names of the clients.
        sizes: [m] training samples.
        gradients: [m, d] gradients of the mean training loss, at one model.
        sigma2: [m] mean squared distance of batch gradients to the full gradient.
        batch_sizes: [m] samples in such a batch.
        label_counts: [m, classes] training samples of each class, or None if there are
            no classes.
        feature_means: [m, features] means of the features, or None if unknown.
        feature_squares: [m, features] means of the squared features, or None if
            unknown.
        feature_names: [features] names of the features, or None if they have none.
        concentrations: [m] in how few directions the gradients of batches vary, see
            `effective_rank`, or None if unknown.
    """

    names: Sequence[str]
    sizes: Int[np.ndarray, " m"]
    gradients: Float[RowMatrix, "m d"]
    sigma2: Float[np.ndarray, " m"]
    batch_sizes: Int[np.ndarray, " m"]
    label_counts: Int[np.ndarray, "m classes"] | None = None
    feature_means: Float[np.ndarray, "m features"] | None = None
    feature_squares: Float[np.ndarray, "m features"] | None = None
    feature_names: Sequence[str] | None = None
    concentrations: Float[np.ndarray, " m"] | None = None

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if values is not None and name != "feature_names":
                require(
                    len(values) == len(self.names),
                    f"{name} holds {len(values)} clients, and there are"
                    f" {len(self.names)} names",
                )
        is_consistent = (self.feature_means is None) == (self.feature_squares is None)
        require(
            is_consistent,
            "give the features' means and the means of their squares, or neither",
        )
        if self.feature_names is not None and self.feature_means is not None:
            require(
                len(self.feature_names) == self.feature_means.shape[1],
                f"there are {len(self.feature_names)} names of features, and"
                f" {self.feature_means.shape[1]} features",
            )
        require(
            len(self.names) > 1,
            "one client alone cannot be compared with others; give two or more",
        )


@dataclass(frozen=True)
class Diagnosis:
    """Estimates and tests from the evidence.

    Attributes:
        evidence: what the clients reported.
        gradients: comparison of pairs by gradients.
        labels: comparison of pairs by labels, or None if they are unknown.
        inputs: comparison of pairs by inputs, or None if they are unknown.
        weights: [m, m] UCFL's rows of weights.
        gain: each client's gain from sharing.
        groups: [m] the group of each client; no pair in a group differs significantly.
            If no pair does, but all clients together do, at a model that was trained:
            the clusters of UCFL's weights, if they are clear.
        silhouette: that of these clusters; None if the groups come from tests of pairs.
    """

    evidence: Evidence
    gradients: Homogeneity
    labels: LabelDifferences | None
    inputs: InputDifferences | None
    weights: Float[np.ndarray, "m m"]
    gain: PersonalizationGain
    groups: Int[np.ndarray, " m"]
    silhouette: float | None = None

    def _repr_html_(self) -> str:
        """The diagnosis in a notebook."""
        return (
            html_paragraphs(self.sentences())
            + table_of_frame(self.clients(), "clients")
            + table_of_frame(
                self.pairs().sort("gradient_ratio", descending=True),
                "pairs, by gradients the most unlike ones first",
            )
        )

    def clients(self) -> "pl.DataFrame":
        """Returns a table with one row for each client.

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
                "gain": np.where(sizes > 1, self.gain.gain, np.nan),
                "strength": np.where(sizes > 1, self.gain.strength, np.nan),
                "group": self.groups,
            }
        )

    def pairs(self) -> "pl.DataFrame":
        """Returns a table with one row for each pair of clients.

        The columns are `client`, `other`, `gradient_ratio` and `gradient_p`. If labels
        or inputs are known, there are also `label_divergence`, `label_p`,
        `input_difference` and `input_p`; see `RESTS_ON`.
        """
        import polars as pl

        names = np.array(self.evidence.names, object)
        first, second = np.triu_indices(len(names), 1)
        columns = {
            "gradient_ratio": self.gradients.ratio[first, second],
            "gradient_p": self.adjusted_p_values("gradients"),
        }
        if self.labels is not None:
            columns["label_divergence"] = self.labels.divergence[first, second]
            columns["label_p"] = self.adjusted_p_values("labels")
        if self.inputs is not None:
            columns["input_difference"] = self.inputs.standardized[first, second]
            columns["input_p"] = self.adjusted_p_values("inputs")
        return pl.DataFrame(
            {"client": list(names[first]), "other": list(names[second]), **columns}
        )

    def adjusted_p_values(self, comparison: ComparedQuantity) -> NDArray[np.float64]:
        """p-values of the pairs, adjusted for the number of pairs (Holm).

        Returns:
            [m (m - 1) / 2] in the order of `pairs`; empty if the labels or inputs are
            unknown.
        """
        upper_triangle = np.triu_indices(len(self.evidence.names), 1)
        if comparison == "gradients":
            return self.gradients.p_holm[upper_triangle]
        compared = self.labels if comparison == "labels" else self.inputs
        return np.zeros(0) if compared is None else holm(compared.p[upper_triangle])

    def sentences(self) -> list[str]:
        """States the results in up to five parts.

        Their order is: differences in labels and inputs, the inputs that differ,
        differences in gradients, groups, and gains.
        """
        sentences = [self._data_sentence(), self._column_sentences()]
        sentences.append(self._gradient_sentence())
        sentences += [self._group_sentence(), self._gain_sentence()]
        return [sentence for sentence in sentences if sentence]

    def columns(self) -> "pl.DataFrame":
        """Returns a table of the features in which clients differ, most first.

        The columns are `column`, `spread` and `p`; see `InputDifferences`. It is empty
        if the inputs are unknown.
        """
        import polars as pl

        found = self.inputs
        if found is None:
            schema = {"column": pl.String, "spread": pl.Float64, "p": pl.Float64}
            return pl.DataFrame(schema=schema)
        names = self._feature_names(len(found.spread))
        table = pl.DataFrame(
            {"column": names, "spread": found.spread, "p": found.spread_p}
        )
        differ = table.filter(pl.col("p") < ALPHA)
        return differ.sort("spread", descending=True, maintain_order=True)

    def _feature_names(self, features: int) -> list[str]:
        """The names of the features, or numbers."""
        names = self.evidence.feature_names
        if names is None:
            return [f"input {number}" for number in range(features)]
        return [str(name) for name in names]

    def _column_sentences(self) -> str:
        """Names the features that differ most, and those that describe clients."""
        sentences = []
        columns = self.columns()
        if not columns.is_empty():
            parts = [
                f"{name} ({spread:.2g})"
                for name, spread in columns.select("column", "spread")
                .head(MAX_COLUMNS)
                .iter_rows()
            ]
            more = len(columns) - len(parts)
            rest = f" and {more} more" if more else ""
            sentences.append(
                "Means of inputs that differ between clients, in deviations within"
                f" them: {', '.join(parts)}{rest}."
            )
        if self.inputs is not None and self.inputs.constant.any():
            names = self._feature_names(len(self.inputs.constant))
            which = np.flatnonzero(self.inputs.constant)
            listed = [names[int(number)] for number in which[:MAX_COLUMNS]]
            more = len(which) - len(listed)
            rest = f" and {more} more" if more else ""
            sentences.append(
                "Constant within every client, so that they describe clients and are not"
                f" compared: {', '.join(listed)}{rest}."
            )
        return " ".join(sentences)

    def _data_sentence(self) -> str:
        parts = []
        for comparison in ("labels", "inputs"):
            p = self.adjusted_p_values(comparison)
            if len(p):
                significant = int((p < ALPHA).sum())
                parts.append(f"{comparison} in {significant} of {len(p)} pairs")
        if not parts:
            return ""
        return f"Clients are told apart by their {' and by their '.join(parts)}."

    def _gradient_sentence(self) -> str:
        p = self.adjusted_p_values("gradients")
        is_significant = p < ALPHA
        if not is_significant.any():
            if self.gradients.overall_p >= ALPHA:
                return "No pair of clients is told apart by gradients."
            return (
                "No pair of clients is told apart by gradients, but all of them together"
                f" differ (p = {self.gradients.overall_p:.2g})."
            )
        # The pairs that also differ significantly in labels or inputs.
        explained = np.zeros(len(p), bool)
        for comparison in ("labels", "inputs"):
            values = self.adjusted_p_values(comparison)
            if len(values):
                explained |= values < ALPHA
        sentence = f"Gradients tell {int(is_significant.sum())} of {len(p)} pairs apart"
        unexplained = int((is_significant & ~explained).sum())
        if self.labels is not None and self.inputs is not None and unexplained:
            return (
                f"{sentence}, {unexplained} of which neither labels nor inputs do: like"
                " inputs seem to be labelled unlike."
            )
        return f"{sentence}."

    def _group_sentence(self) -> str:
        sizes = np.bincount(self.groups)
        if len(sizes) == 1:
            return ""
        if self.silhouette is not None:
            return (
                f"UCFL's weights fall into {len(sizes)} clear groups (silhouette"
                f" {self.silhouette:.2f})."
            )
        group_sizes = zip(self.evidence.names, sizes[self.groups], strict=True)
        singletons = [name for name, size in group_sizes if size == 1]
        if len(singletons) == len(self.groups):
            return (
                "Every client is told apart from every other one: there are no groups."
            )
        sentence = f"There are {len(sizes)} groups within which no pair is told apart"
        if not singletons:
            return f"{sentence}."
        names = ", ".join(singletons[:3])
        if len(singletons) > 3:
            names += f" and {len(singletons) - 3} more"
        return (
            f"{sentence}; {names} {'stand' if len(singletons) > 1 else 'stands'} alone."
        )

    def _gain_sentence(self) -> str:
        # Nothing is known of the gradients' variance in a client with a single row.
        gain = self.gain.gain[self.evidence.sizes > 1]
        low, median, high = gain.min(), np.median(gain), gain.max()
        return (
            f"Sharing would make clients as sure of their models as {low:.3g} to"
            f" {high:.3g} times their samples (median {median:.3g}), if models behaved"
            " like means."
        )


def diagnose(evidence: Evidence, *, trained: bool = False) -> Diagnosis:
    """Computes all estimates and tests, from one probe.

    Args:
        evidence: the clients' answers.
        trained: whether the probe's model has been trained. At an initial model
            clusters of weights are no evidence of groups.

    Raises:
        ValueError: no client has samples for two batches, or a client's gradients do
            not vary between batches.
    """
    sizes = np.asarray(evidence.sizes)
    traces = gradient_traces(
        np.asarray(evidence.sigma2, np.float64), np.asarray(evidence.batch_sizes), sizes
    )
    gradient_comparison = homogeneity(
        evidence.gradients,
        traces,
        sizes,
        degrees=(sizes // evidence.batch_sizes - 1).astype(np.float64),
        concentrations=evidence.concentrations,
    )
    # The variance of each client's mean gradient. A client with a single batch gets the
    # median of the others.
    mean_variances = np.where(np.isnan(traces), np.nanmedian(traces), traces) / sizes
    constant = np.flatnonzero(mean_variances <= 0)
    if len(constant):
        raise ValueError(
            f"the gradients of client {evidence.names[int(constant[0])]!r} do not vary"
            " between batches; are all its rows the same?"
        )
    gradients = np.asarray(evidence.gradients, np.float64)
    labels, inputs = None, None
    if evidence.label_counts is not None:
        labels = label_differences(evidence.label_counts)
    means, squares = evidence.feature_means, evidence.feature_squares
    if means is not None and squares is not None:
        inputs = input_differences(means, squares, sizes)
    # sigma_i^2 of batches of the kernel's size, if the variance of a gradient is known.
    kernel_batches = batch_sizes(sizes, KERNEL_SHARE)
    kernel_sigma2 = np.where(
        np.isnan(traces), evidence.sigma2, traces * (1 / kernel_batches - 1 / sizes)
    )
    weights = user_centric_weights(Probe(gradients, kernel_sigma2, sizes))
    gain = personalization_gain(
        mean_variances, local_variance_between(gradients, mean_variances), "exact"
    )
    groups, silhouette = gradient_comparison.groups(ALPHA), None
    if trained and not groups.any() and gradient_comparison.overall_p < ALPHA:
        streams, silhouettes = choose_streams(weights)
        if silhouettes.get(streams, 0.0) >= CLEAR:
            groups, _ = k_means(weights, streams)
            silhouette = silhouettes[streams]
    return Diagnosis(
        evidence,
        gradient_comparison,
        labels,
        inputs,
        weights,
        gain,
        groups,
        silhouette,
    )
