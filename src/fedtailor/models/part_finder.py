"""Which parts a model has, and how a name or a pattern selects one."""

import fnmatch
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from fedtailor.models.parts import NOT, Part

EVERYTHING, NOTHING = "everything", "nothing"
REGEX = "re:"
"""Before a regular expression, which is searched for in the paths of parameters."""
MAX_PATHS_IN_MESSAGE = 12


@dataclass(frozen=True)
class Parameter:
    """One array of a model, which is theta[start:end].

    Attributes:
        path: where it is in the network, such as "layers.2.weight".
        start, end: its slice of theta; equal for an array without entries.
    """

    path: str
    start: int
    end: int

    @property
    def layer(self) -> str:
        """The path of the layer that owns it, "layers.2" of "layers.2.weight"."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in that layer, "weight" of "layers.2.weight"."""
        return self.path.rpartition(".")[2]

    def is_in(self, layer: str) -> bool:
        """Whether `layer` is the path of a layer around it, or its own path."""
        return self.path == layer or self.path.startswith(f"{layer}.") or not layer


@dataclass(frozen=True)
class LayerInfo:
    """What an architecture knows of its layers.

    A layer is named by the path of the module that owns its parameters, such as
    "layers.2".

    Attributes:
        head: the last dense layer, or None if the network has none.
        norms: the normalisation layers.
        order: layers in the order in which the forward pass calls them, as far as it is
            known. Layers that are not listed come before all of these, in the order of
            theta.
        input_dtype: type of the inputs: "float32" (for all floating-point types), or
            "int32" for token ids.
    """

    head: str | None = None
    norms: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    input_dtype: str = "float32"


@dataclass(frozen=True)
class PartFinder:
    """Finds the parts of one model by name.

    A name selects a set of parameters, of which a `Part` of theta is then made.

    Attributes:
        parameters: all parameters of the model, in the order of theta.
        layer_info: which layers are the head and the normalisation layers.
    """

    parameters: tuple[Parameter, ...]
    layer_info: LayerInfo

    @property
    def d(self) -> int:
        """The number of entries of theta."""
        return self.parameters[-1].end if self.parameters else 0

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The parts that have a name of their own ("head", "last2", ...), except those
        that would be empty or the whole model.
        """
        parts = {name: self._part(name, ps) for name, ps in self._named.items()}
        return {name: part for name, part in parts.items() if 0 < part.size < self.d}

    def find(self, name: str) -> Part:
        """The part that a name or a pattern selects.

        These forms are tried in this order, so that an earlier one binds more loosely:

        * "everything", "nothing".
        * "not X": all parameters except those of X, where X is the rest of the name
          with all its commas: "not head,norm" is neither head nor norm.
        * the name of a part: "head", "body", "norm", "bias", "last1", "last2", ...
        * "re:X": parameters in whose path the regular expression X is found. It may
          hold commas.
        * "X,Y": the union of X and Y, each in any of these forms: "head,not bias" is
          all of the head, and all else that is no bias. A "re:" behind a comma ends at
          the next comma.
        * the path of a layer ("layers.2"), the path of a parameter
          ("layers.2.weight"), or a pattern on paths with the wildcards of `fnmatch`
          ("layers.*.weight").

        Raises:
            ValueError: the name selects no parameter, or all of them ("nothing" and
                "everything" are said on purpose and are allowed).
        """
        if not isinstance(name, str):
            raise ValueError(
                f"part is {name!r}; it must be a name or a pattern, such as 'head',"
                " 'last2' or 'layers.*'"
            )
        return self._part(name, self._select(name))

    def _select(self, name: str) -> AbstractSet[Parameter]:
        """The parameters that a name selects, by the rules of `find`."""
        everything = frozenset(self.parameters)
        if name == EVERYTHING:
            return everything
        if name == NOTHING:
            return frozenset()
        if name.startswith(NOT):
            return everything - self._select(name.removeprefix(NOT).strip())

        selected: AbstractSet[Parameter]
        if name in self._named:
            selected = self._named[name]
        elif name.startswith(REGEX):
            selected = self._search(name)
        elif "," in name:
            items = [item.strip() for item in name.split(",")]
            selected = frozenset().union(
                *(self._select(item) for item in items if item)
            )
        else:
            selected = {p for p in self.parameters if _matches(p, name)}
        self._require_some_but_not_all(name, selected)
        return selected

    def _search(self, name: str) -> set[Parameter]:
        """The parameters in whose path the regular expression "re:..." is found.

        Raises:
            ValueError: what follows "re:" is not a valid regular expression.
        """
        try:
            expression = re.compile(name.removeprefix(REGEX))
        except re.error as error:
            raise ValueError(
                f"part {name!r} is no regular expression ({error})"
            ) from None
        return {p for p in self.parameters if expression.search(p.path)}

    @cached_property
    def _named(self) -> dict[str, AbstractSet[Parameter]]:
        """The parameters of each part that has a name of its own, also of those parts
        that are empty or the whole model.
        """
        everything = self.parameters
        norms = self.layer_info.norms
        named: dict[str, AbstractSet[Parameter]] = {}
        head_path = self.layer_info.head
        if head_path is not None:
            head = {p for p in everything if p.is_in(head_path)}
            named["head"] = head
            named["body"] = set(everything) - head
        named["norm"] = {p for p in everything if any(map(p.is_in, norms))}
        named["bias"] = {p for p in everything if "bias" in p.name}
        for count, layers in enumerate(self._last_layers(), 1):
            named[f"last{count}"] = {p for p in everything if p.layer in layers}
        return named

    def _last_layers(self) -> Sequence[set[str]]:
        """The layers of "last1", "last2", ...

        A normalisation layer counts with the layer before it: of the layers dense1,
        norm, dense2, "last1" is {dense2} and "last2" is {dense1, norm, dense2}.
        """
        # The order in which the forward pass calls the layers, as far as it was
        # recorded by tracing. Layers without a recorded call come first, in the order
        # of theta.
        layers = list(dict.fromkeys(p.layer for p in self.parameters))
        called = [layer for layer in self.layer_info.order if layer in layers]
        in_order = [layer for layer in layers if layer not in called] + called
        # Each layer that is no normalisation starts one of the parts, which goes on to
        # the last layer.
        starts = [
            index
            for index, layer in enumerate(in_order)
            if layer not in self.layer_info.norms
        ]
        return [set(in_order[start:]) for start in reversed(starts)]

    def _part(self, name: str, selected: AbstractSet[Parameter]) -> Part:
        """The part of theta that holds these parameters."""
        slices: list[tuple[int, int]] = []
        for parameter in self.parameters:
            if parameter not in selected or parameter.start == parameter.end:
                continue
            if slices and slices[-1][1] == parameter.start:
                # It follows the previous one without a gap: one slice for both.
                slices[-1] = (slices[-1][0], parameter.end)
            else:
                slices.append((parameter.start, parameter.end))
        return Part(name, tuple(slices), self.d)

    def _require_some_but_not_all(
        self, name: str, selected: AbstractSet[Parameter]
    ) -> None:
        """Refuse a part that is empty or the whole model, which is what most mistyped
        patterns select.

        Raises:
            ValueError: it is one of these; the message lists the parts and paths that
                the model has.
        """
        size = sum(parameter.end - parameter.start for parameter in selected)
        if 0 < size < self.d:
            return
        how = "is nothing" if size == 0 else "is all"
        paths = [p.path or "(one array)" for p in self.parameters]
        shown = ", ".join(paths[:MAX_PATHS_IN_MESSAGE])
        if len(paths) > MAX_PATHS_IN_MESSAGE:
            shown += f" and {len(paths) - MAX_PATHS_IN_MESSAGE} more"
        parts = ", ".join(_abbreviated(list(self.parts))) or "none"
        raise ValueError(
            f"part {name!r} {how} of this model; the parts it has are: {parts}; "
            f"or name parameters by path or pattern: {shown}"
        )


def _matches(parameter: Parameter, pattern: str) -> bool:
    """Whether a path, or a pattern with wildcards, selects a parameter."""
    # An empty pattern would be the path of the network itself, around everything.
    if pattern == "":
        return False
    return parameter.is_in(pattern) or fnmatch.fnmatchcase(parameter.path, pattern)


def _abbreviated(names: list[str]) -> list[str]:
    """The names with last1, last2, ..., last9 as "last1 to last9"."""
    last = [name for name in names if re.fullmatch(r"last\d+", name)]
    others = [name for name in names if name not in last]
    if len(last) > 2:
        last = [f"{last[0]} to {last[-1]}"]
    return [*others, *last]
