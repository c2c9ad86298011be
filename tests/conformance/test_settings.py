"""Settings of every method: the range that a message names is the range that is checked,
and a default that is said to be the paper's is.
"""

import re
import typing

from fedtailor import algorithms
from fedtailor.cli.hyper import parameters

METHODS = [getattr(algorithms, name) for name in algorithms.__all__ if name != "Then"]
"""Every method that has defaults."""
RANGES = [
    re.compile(said)
    for said in (
        r"in (?P<from>[\[(])(?P<low>\d), (?P<high>\d)(?P<to>[\])])",
        r"(a number of rounds, )?(?P<low>\d)(?P<from>)( \(.*?\))? or more"
        r"(,? and (?P<to>below) (?P<high>\d))?",
        r"(a number |an angle )?(?P<from>above) (?P<low>\d)"
        r"( and (?P<to>below|up to) (?P<high>\d+))?",
    )
]
INSIDE = ("[", "", "]", "up to")
"""How messages say that an end belongs to the range."""
NEAR = 1e-6


def refusal(method, name, value):
    """Which values are allowed, as the error for this one says; "" if there is none."""
    try:
        method(**{name: value})
    except ValueError as error:
        found = re.match(rf"{name} is .*?; it must be (.*)", str(error))
        return found[1] if found else ""
    return ""


def ends(said):
    """[(end, whether it is allowed, 1 if the range lies above it, otherwise -1)]."""
    for pattern in RANGES:
        if found := pattern.match(said):
            range_ = found.groupdict()
            low = int(range_["low"]), range_["from"] in INSIDE, 1
            if range_["high"] is None:
                return [low]
            return [low, (int(range_["high"]), range_["to"] in INSIDE, -1)]
    return []


def test_the_range_that_a_message_names_is_the_one_that_is_checked():
    wrong, checked = [], 0
    for method in METHODS:
        for name, annotation in typing.get_type_hints(method).items():
            kinds = {annotation, *typing.get_args(annotation)} & {int, float}
            is_tuple = typing.get_origin(annotation) is tuple
            if is_tuple or len(kinds) != 1:  # no number, or one of two kinds
                continue
            (kind,) = kinds
            step = 1 if kind is int else NEAR
            for end, is_allowed, up in ends(refusal(method, name, kind(-1))):
                checked += 1
                last = end if is_allowed else end + up * step
                if refusal(method, name, kind(last)):
                    wrong.append((method.__name__, name, last, "is refused"))
                if not refusal(method, name, kind(last - up * step)):
                    wrong.append((method.__name__, name, last - up * step, "is not"))
    assert not wrong
    assert checked > 100


def test_a_default_from_the_paper_is_its_number():
    wrong, checked = [], 0
    for method in METHODS:
        for row in parameters(method()):
            said = re.search(
                r"\((?:the paper|released run|(?:PFLlib and )?FL-bench): ([\d.]+)\)",
                row["doc"],
            )
            if said:
                checked += 1
                if float(row["default"]) != float(said[1]):
                    wrong.append((method.__name__, row))
    assert not wrong
    assert checked > 12
