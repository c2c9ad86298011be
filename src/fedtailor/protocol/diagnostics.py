"""What a method can tell about itself after training: numbers that reports draw without
knowing the method.
"""

from dataclasses import dataclass

from jaxtyping import Shaped
from numpy import ndarray


@dataclass(frozen=True)
class MatrixDiagnostic:
    """Numbers between clients, drawn as a picture: who learned from whom.

    Attributes:
        name: "collaboration", "affinity", ...: what a report asks for.
        title: what stands above the picture.
        values: [m, m], both axes in the order of client ids; row i is what client i
            uses.
    """

    name: str
    title: str
    values: Shaped[ndarray, "m m"]


@dataclass(frozen=True)
class LineDiagnostic:
    """A quantity over another, or one number for every client.

    Attributes:
        name: "silhouette", "gain", ...
        title: what stands above the picture.
        x, y: [n] and [n]; x = client positions (in the order of ids) where `x_label` is
            "client".
        x_label, y_label: what stands at the axes.
        chosen: the x that the method chose, if it chose one.
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
        title: what stands above it.
        parent: [n] the cluster that split k divided; it made cluster k + 1.
        round: [n] when.
        members: [m] the cluster in which each client ended, in the order of client ids.
    """

    name: str
    title: str
    parent: Shaped[ndarray, " n"]
    round: Shaped[ndarray, " n"]
    members: Shaped[ndarray, " m"]


Diagnostic = MatrixDiagnostic | LineDiagnostic | TreeDiagnostic
