"""`PartFinder`: selects parts of a model by names and patterns."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from fedtailor._base.choice import require
from fedtailor.models.parts import NOT, Part

EVERYTHING, NOTHING = "everything", "nothing"
REGEX = "re:"
"""The prefix of a regular expression, which selects the parameters in whose paths it is
found.
"""
MOST_LENGTH = 10_000
"""Characters of a name."""
MOST_REPEATS, MOST_CHOICES = 4, 8
"""Quantifiers (* + ?) and alternatives (|) in a regular expression. No quantifier may follow
a group: of nested ones a search takes a time that doubles with each character, and files
come from others. So there are no classes [...] either, which can hide brackets.
"""
_PATTERN = re.compile(r"(?:[\w ./^$|()*+?-]|\\[dw.])*")
MAX_PATHS_IN_MESSAGE = 12


@dataclass(frozen=True)
class Parameter:
    """One array of a model, which is theta[start:end].

    Attributes:
        path: its path in the network, such as "layers.2.weight".
        start, end: its slice of theta; equal for an empty array.
    """

    path: str
    start: int
    end: int

    @property
    def layer(self) -> str:
        """The path of its layer: "layers.2" for "layers.2.weight"."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in the layer: "weight" for "layers.2.weight"."""
        return self.path.rpartition(".")[2]

    def is_in(self, layer: str) -> bool:
        """Whether `layer` is the path of a module that contains it, or its own path."""
        return self.path == layer or self.path.startswith(f"{layer}.") or not layer


@dataclass(frozen=True)
class LayerInfo:
    """An architecture's description of its layers.

    A layer is identified by the path of the module that has its parameters, such as
    "layers.2".

    Attributes:
        head: the last dense layer; None if the network has none.
        norms: the normalisation layers.
        order: the layers in the order in which the forward pass calls them. Layers whose
            call is unknown are left out; they count as called before all others, in the
            order of theta.
        input_dtype: the dtype of the inputs: "float32" (for all floating-point types), or
            "int32" for token ids.
    """

    head: str | None = None
    norms: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    input_dtype: str = "float32"

    def renamed(self, name: Callable[[str], str]) -> "LayerInfo":
        """The same layers, each with the path that a function gives to it."""
        return replace(
            self,
            head=None if self.head is None else name(self.head),
            norms=tuple(map(name, self.norms)),
            order=tuple(map(name, self.order)),
        )


@dataclass(frozen=True)
class PartFinder:
    """Selects parts of one model by name.

    Attributes:
        parameters: all parameters of the model, in the order of theta.
        layer_info: the description of the model's layers.
    """

    parameters: tuple[Parameter, ...]
    layer_info: LayerInfo

    @property
    def d(self) -> int:
        """The number of entries of theta."""
        return self.parameters[-1].end if self.parameters else 0

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Name ("head", "last2", ...) -> part, except parts that would be empty or the
        whole model.
        """
        parts = (
            self._to_part(name, parameters)
            for name, parameters in self._parameters_by_name.items()
        )
        return {part.name: part for part in parts if 0 < part.size < self.d}

    def find(self, name: str) -> Part:
        """Select a part by a name or a pattern.

        A name may have one of the following forms. The first one that matches is used.

        * "everything", "nothing".
        * "not X": all parameters except those of X. X is the whole rest of the name: "not
          head,norm" is all parameters outside of head and norm.
        * The name of a part: "head", "body", "norm", "bias", "last1", "last2", ...
        * "re:X": parameters in whose path the regular expression X is found. X is the
          whole rest of the name, and may contain commas.
        * "X,Y": the union of X and Y, which may have any of these forms. For example,
          "head,not bias" is all of the head and all parameters that are not bias. In such
          a list, a regular expression ends at the next comma.
        * The path of a layer ("layers.2") or of a parameter ("layers.2.weight"), or a
          pattern on paths with the wildcards of `fnmatch` ("layers.*.weight").

        Raises:
            ValueError: the name selects no parameter or all of them, and is not "nothing"
                or "everything".
        """
        if not isinstance(name, str):
            raise ValueError(
                f"part is {name!r}; it must be a name or a pattern, such as 'head',"
                " 'last2' or 'layers.*'"
            )
        return self._to_part(name, self._select(name))

    def paths_of(self, name: str) -> tuple[str, ...]:
        """The paths of the arrays that a name selects, in the order of theta.

        Raises:
            ValueError: as `find`.
        """
        selected = self._select(name)
        return tuple(
            parameter.path for parameter in self.parameters if parameter in selected
        )

    def _select(self, name: str) -> AbstractSet[Parameter]:
        """The parameters that a name selects, by the rules of `find`."""
        require(
            len(name) <= MOST_LENGTH,
            f"part is {len(name):,} characters long; {MOST_LENGTH:,} are allowed",
        )
        all_parameters = frozenset(self.parameters)
        if name == EVERYTHING:
            return all_parameters
        if name == NOTHING:
            return frozenset()
        if name.startswith(NOT):
            is_without = False
            while name.startswith(NOT):
                name, is_without = name.removeprefix(NOT).strip(), not is_without
            named = self._select(name)
            return all_parameters - named if is_without else named

        selected: AbstractSet[Parameter]
        if name in self._parameters_by_name:
            selected = self._parameters_by_name[name]
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
            ValueError: what follows "re:" is not a valid regular expression, or one whose
                search can take long.
        """
        pattern = name.removeprefix(REGEX)
        try:
            expression = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"part {name!r} is not a regular expression ({error})"
            ) from None
        require(
            _PATTERN.fullmatch(pattern) is not None
            and len(re.findall(r"[*+?]", pattern)) <= MOST_REPEATS
            and pattern.count("|") <= MOST_CHOICES
            and not re.search(r"\)[*+?]|\(\?", pattern),
            f"part {name!r} asks for too much: a pattern has letters, digits, . _ / - ^ $,"
            f" brackets ( ), \\d and \\w, up to {MOST_REPEATS} of * + ?, none of them next"
            f" to a bracket, and up to {MOST_CHOICES} of |; select several parts instead",
        )
        return {p for p in self.parameters if expression.search(p.path)}

    @cached_property
    def _parameters_by_name(self) -> dict[str, AbstractSet[Parameter]]:
        """Name of a part -> its parameters, including parts that are empty or the whole
        model.
        """
        named: dict[str, AbstractSet[Parameter]] = {}
        head_path = self.layer_info.head
        if head_path is not None:
            head = {p for p in self.parameters if p.is_in(head_path)}
            named["head"] = head
            named["body"] = set(self.parameters) - head
        norms = self.layer_info.norms
        named["norm"] = {p for p in self.parameters if any(map(p.is_in, norms))}
        named["bias"] = {p for p in self.parameters if "bias" in p.name}
        # The two factors of low-rank adapters, and second adapters.
        for factor in ("lora_a", "lora_b"):
            with_factor = {p for p in self.parameters if p.name == factor}
            if with_factor:
                named[factor] = with_factor
                named["adapter"] = named.get("adapter", set()) | with_factor
        local = {p for p in self.parameters if p.name in ("local_a", "local_b")}
        if local:
            named["local"] = local
        for count, layers in enumerate(self._last_layers(), 1):
            named[f"last{count}"] = {p for p in self.parameters if p.layer in layers}
        return named

    def _last_layers(self) -> Sequence[set[str]]:
        """The layers of "last1", "last2", ...

        A normalisation layer counts with the layer before it: for the layers dense1,
        norm, dense2, "last1" is {dense2} and "last2" is {dense1, norm, dense2}.
        """
        # Layers whose call is unknown come first, in the order of theta.
        layers = list(dict.fromkeys(p.layer for p in self.parameters))
        called = [layer for layer in self.layer_info.order if layer in layers]
        in_order = [layer for layer in layers if layer not in called] + called
        # A part starts at each layer that is not a normalisation, and ends at the last
        # layer.
        starts = [
            index
            for index, layer in enumerate(in_order)
            if layer not in self.layer_info.norms
        ]
        return [set(in_order[start:]) for start in reversed(starts)]

    def _to_part(self, name: str, selected: AbstractSet[Parameter]) -> Part:
        """The part of theta that consists of these parameters."""
        slices: list[tuple[int, int]] = []
        for parameter in self.parameters:
            if parameter not in selected or parameter.start == parameter.end:
                continue
            if slices and slices[-1][1] == parameter.start:
                # It follows the previous one without a gap, so that both are one slice.
                slices[-1] = (slices[-1][0], parameter.end)
            else:
                slices.append((parameter.start, parameter.end))
        return Part(name, tuple(slices), self.d)

    def _require_some_but_not_all(
        self, name: str, selected: AbstractSet[Parameter]
    ) -> None:
        """Refuse a part that is empty or the whole model, as most mistyped patterns are.

        Raises:
            ValueError: with the parts and the paths of the model.
        """
        size = sum(parameter.end - parameter.start for parameter in selected)
        if 0 < size < self.d:
            return
        problem = "is nothing" if size == 0 else "is all"
        paths = [p.path or "(one array)" for p in self.parameters]
        listed = ", ".join(paths[:MAX_PATHS_IN_MESSAGE])
        if len(paths) > MAX_PATHS_IN_MESSAGE:
            listed += f" and {len(paths) - MAX_PATHS_IN_MESSAGE} more"
        parts = ", ".join(_abbreviate(list(self.parts))) or "none"
        raise ValueError(
            f"part {name!r} {problem} of this model; the parts it has are: {parts}; "
            f"or name parameters by path or pattern: {listed}"
        )


def _matches(parameter: Parameter, pattern: str) -> bool:
    """Whether a path, or a pattern with wildcards, selects a parameter."""
    # An empty pattern would be the path of the whole network.
    if pattern == "":
        return False
    return parameter.is_in(pattern) or fnmatch.fnmatchcase(parameter.path, pattern)


def _abbreviate(names: list[str]) -> list[str]:
    """Replace the names last1, last2, ..., last9 by "last1 to last9"."""
    last = [name for name in names if re.fullmatch(r"last\d+", name)]
    others = [name for name in names if name not in last]
    if len(last) > 2:
        last = [f"{last[0]} to {last[-1]}"]
    return [*others, *last]
