"""`TableOptions`: how to read, split and encode a table."""

import codecs
import unicodedata
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedtailor._base.choice import check_choice, require

TableTask = Literal["classification", "regression"]
Hazard = Literal["discrete", "cox"]


@dataclass(frozen=True)
class TableOptions:
    """Options for building a federation from a table.

    They define the roles of columns, the splits, and the format of cells.

    Example:
        >>> from fedtailor.data.tables import TableOptions
        >>> TableOptions(client="hospital", target="ill", drop=("id",)).drop
        ('id',)
    """

    client: str = "client"
    """The column that names the client of a row."""
    target: str = "label"
    """The column to predict."""
    features: tuple[str, ...] | None = None
    """The input columns (default: all that have no other role; ids, constants and
    duplicates are left out).
    """
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that are codes: one input for each value instead of one
    number.
    """
    event: str | None = None
    """The column that says whether the event was seen (1, yes, true), or the row was last
    seen without it at the time in `target`: survival.
    """
    hazard: Hazard = "discrete"
    """With `event`: a logistic hazard in intervals of time ("discrete"), or Cox's partial
    likelihood among the rows of a client ("cox").
    """
    task: TableTask | None = None
    """What is predicted (default: text and few whole numbers are classes, other numbers
    a regression).
    """
    positive: tuple[str, ...] = ()
    """The labels that count as positive, all others being negative; or one comparison,
    such as ">0".
    """
    test: float = 0.2
    """The share of each client's rows to test on."""
    val: float = 0.1
    """The share of each client's rows to validate on."""
    split: str | None = None
    """A column that says train, val or test (a column called `split` that does is used
    without asking).
    """
    time: str | None = None
    """A column of times or dates: each client is tested on its last rows."""
    group: str | None = None
    """A column whose rows of one value stay together, such as the patient of a visit:
    never on both sides.
    """
    weight: str | None = None
    """A column of numbers, 0 or more, that says how much a row counts, in training and in
    metrics. Twice the weight is the row twice; it is not an input.
    """
    class_weights: Literal["balanced"] | None = None
    """balanced: in training, each row counts N / (k N_c), where N_c of the N training rows
    of all clients together have its class, of k; metrics are as without. It helps to find
    a rare class, whose predicted probabilities are then too high.
    """
    window: int | None = None
    """Rows of an example, for a long table with one row for each client and time (needs
    `time`): each example is a window of this number of consecutive rows.
    """
    step: int | None = None
    """Rows between the beginnings of two windows to train on (default: as many as a
    window has); those to validate and test on share no rows.
    """
    folds: int | None = None
    """Cross-validation: seed s tests on part s of this many parts."""
    unseen: int | float | tuple[str, ...] = 0
    """Clients that never train: how many, which share, or their names."""
    clients: tuple[str, ...] | None = None
    """The clients to take (default: all of the table); rows of others are not looked
    at.
    """
    missing: tuple[str, ...] = ()
    """Further words for a missing cell, besides the empty cell, ?, NA, N/A, NaN, null,
    #N/A, a dash and a dot; COLUMN=WORD for a word of one column, such as chol=0.
    """
    skip_unlabelled: bool = False
    """Leave out rows without a target or without a client, instead of refusing them."""
    keep_correlated: bool = False
    """Leave the inputs of a regression correlated, as they are in the table."""
    preprocessing: Literal["pooled", "federated"] = "pooled"
    """What fills missing cells, scales numbers and lists categories: sums over all
    training rows, or those that clients of a federation of machines send (no count of
    fewer than five rows of a client).
    """
    fold_case: bool = False
    """Read all text in lower case and with single spaces: Yes and yes, BASEL and Basel
    are one value.
    """
    separator: str | None = None
    """What stands between the cells of a line (default: recognised)."""
    decimal: Literal[".", ","] | None = None
    """The decimal sign (default: recognised)."""
    thousands: str | None = None
    """The thousands mark, such as "." of 10.267 for ten thousand (default: recognised,
    where the decimal sign is)."""
    encoding: str | None = None
    """How the text is encoded (default: recognised)."""
    sheet: str | None = None
    """The sheet of an Excel file (default: the first that has the named columns)."""

    def __post_init__(self) -> None:
        # As cells are (`reading.clean`): letters with accents as one character.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str | tuple):
                object.__setattr__(self, field.name, _composed(value))
        if self.fold_case:
            # What is asked for is compared with cells.
            for name in ("clients", "unseen", "positive"):
                value = getattr(self, name)
                if isinstance(value, tuple):
                    object.__setattr__(self, name, tuple(map(folded, value)))
        require(
            0 <= self.test < 1 and 0 <= self.val < 1 and self.test + self.val < 1,
            f"test is {self.test} and val is {self.val}; they are shares, 0 or more,"
            " with a sum below 1",
        )
        require(
            self.folds is None or self.folds >= 2,
            f"folds is {self.folds}; it must be 2 or more",
        )
        check_choice(self.hazard, ("discrete", "cox"), "hazard")
        require(
            self.event is None or self.task is None,
            "event is for survival, and task for classes and numbers; leave one out",
        )
        require(
            self.event is None or self.window is None,
            "windows of series have no survival targets; leave out event or window",
        )
        check_choice(self.preprocessing, ("pooled", "federated"), "preprocessing")
        if self.class_weights is not None:
            check_choice(self.class_weights, ("balanced",), "class_weights")
        for name in ("weight", "class_weights"):
            given = getattr(self, name) is not None
            require(
                not given or self.event is None,
                f"{name} is for classes and numbers, and times to an event take no"
                f" weights; leave out event or {name}",
            )
            require(
                not given or self.window is None,
                f"windows of series take no weights; leave out window or {name}",
            )
        require(
            self.class_weights is None or self.task != "regression",
            "class_weights are for classes, and task is regression; leave one out",
        )
        separator = self.separator
        require(
            separator is None or len(separator) == 1,
            f"separator is {separator!r}; give one character, such as ';'",
        )
        thousands = self.thousands
        require(
            thousands is None or (len(thousands) == 1 and not thousands.isalnum()),
            f"thousands is {thousands!r}; give one character, such as '.'",
        )
        if thousands in (".", ",") and self.decimal is None:
            other = "," if thousands == "." else "."
            object.__setattr__(self, "decimal", other)
        require(
            thousands is None or thousands != self.decimal,
            f"decimal and thousands are both {thousands!r}; they are two characters",
        )
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise ValueError(
                f"there is no encoding {self.encoding!r}; try utf-8, utf-16, cp1252 or"
                " latin-1"
            ) from None
        split_rules = {"split": self.split, "time": self.time, "folds": self.folds}
        rules = [name for name, value in split_rules.items() if value is not None]
        require(
            len(rules) <= 1,
            f"{' and '.join(rules)} exclude each other: each says which rows are the"
            " test",
        )
        require(
            self.time is None or self.group is None,
            "time and group exclude each other: a group's rows may lie before and after"
            " another's; leave one out",
        )
        self._check_windows()
        roles: dict[str, str] = {}
        for role, column in self.roles.items():
            require(
                column not in roles,
                f"column {column!r} cannot be both {roles.get(column)} and {role}",
            )
            roles[column] = role
        for column in (*(self.features or ()), *self.drop, *self.categories):
            require(
                column not in (self.client, self.target, self.event, self.weight),
                f"column {column!r} is the {roles.get(column)} column; take it out of"
                " features, drop and categories",
            )
        both = set(self.features or ()) & set(self.drop)
        require(
            not both,
            f"column {min(both, default='')!r} is in both features and drop; take it"
            " out of one",
        )

    def _check_windows(self) -> None:
        for name in ("window", "step"):
            value = getattr(self, name)
            require(
                value is None or value >= 1,
                f"{name} is {value}; it is a number of rows, 1 or more",
            )
        require(
            self.window is None or self.time is not None,
            "window needs the column that orders the rows; name it with time",
        )
        require(
            self.step is None or self.window is not None,
            "step is the distance of windows; say how many rows one has with window",
        )
        require(
            self.window is None or self.preprocessing == "pooled",
            "windows of a table have preprocessing pooled; leave the other one out",
        )

    @property
    def roles(self) -> dict[str, str]:
        """The column of each role that has one."""
        roles = {
            "client": self.client,
            "target": self.target,
            "event": self.event,
            "split": self.split,
            "time": self.time,
            "group": self.group,
            "weight": self.weight,
        }
        return {role: column for role, column in roles.items() if column is not None}


def _composed(value: Any) -> Any:
    """Text, in tuples, too, in Unicode's composed form."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    return tuple(map(_composed, value)) if isinstance(value, tuple) else value


def folded(text: str) -> str:
    """Text in lower case, with single spaces."""
    return " ".join(text.split()).lower()


def make_options(arguments: dict[str, Any]) -> TableOptions:
    """Build `TableOptions` from keyword arguments, which may have lists for tuples.

    Raises:
        ValueError: an option is unknown, or options contradict each other.
    """
    names = [field.name for field in fields(TableOptions)]
    for name in arguments:
        check_choice(name, names, "option")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
    for name in ("drop", "categories", "positive", "missing", "features", "clients"):
        if isinstance(values.get(name), str | int | float):
            values[name] = (values[name],)
    if "positive" in values:
        values["positive"] = tuple(str(label) for label in values["positive"])
    return TableOptions(**values)
