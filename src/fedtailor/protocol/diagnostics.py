"""Numbers about a method's training that reports can draw without knowing the method."""

from dataclasses import dataclass

from jaxtyping import Shaped
from numpy import ndarray


@dataclass(frozen=True)
class MatrixDiagnostic:
    """A number for each pair of clients, such as how much one learned from the other.

    Attributes:
        name: the name that reports look for: "collaboration", "affinity", ...
        title: the title of the picture.
        values: [m, m], both axes in the order of client ids; row i holds the weights that
            client i uses.
    """

    name: str
    title: str
    values: Shaped[ndarray, "m m"]


@dataclass(frozen=True)
class LineDiagnostic:
    """One quantity as a function of another, or one number for every client.

    Attributes:
        name: "silhouette", "gain", ...
        title: the title of the picture.
        x, y: [n] each. If `x_label` is "client", x holds the clients' positions in the
            order of ids.
        x_label, y_label: the labels of the axes.
        chosen: the x that the method chose; None if it did not choose one.
    """

    name: str
    title: str
    x: Shaped[ndarray, " n"]
    y: Shaped[ndarray, " n"]
    x_label: str
    y_label: str
    chosen: float | None = None


@dataclass(frozen=True)
class TreeDiagnostic:
    """A tree of clusters of clients.

    Attributes:
        name: "splits", ...
        title: the title of the picture.
        parent: [n] for split k, the cluster that it divided. The new cluster is k + 1.
        round: [n] the round of each split.
        members: [m] the final cluster of each client, in the order of client ids.
    """

    name: str
    title: str
    parent: Shaped[ndarray, " n"]
    round: Shaped[ndarray, " n"]
    members: Shaped[ndarray, " m"]


Diagnostic = MatrixDiagnostic | LineDiagnostic | TreeDiagnostic
