"""benchmarks/peers: properties that need no opinion, and the page that shows who has
them.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="benchmarks are in the repository only"
)


@pytest.fixture(scope="module")
def properties():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("properties")
        for name in ("properties", "ours", "page"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def ours(properties):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module("ours")


@pytest.fixture(scope="module")
def page(properties):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module("page")


def test_the_page_is_what_the_results_say(page):
    assert page.PAGE.read_text() == page.page(), "run benchmarks/peers/page.py --write"


def test_all_properties_hold_here(page):
    """As the script found them."""
    found = json.loads((FOLDER / "results" / "ours.json").read_text())
    assert len(found["rows"]) > 25
    assert all(row.get("holds") for row in found["rows"])


class Reference:
    """FedAvg in NumPy, with one mistake if `fault` names one."""

    name, version, precise, methods = "reference", "", True, ("FedAvg",)

    def __init__(self, properties, fault=""):
        self.properties, self.fault = properties, fault

    def train(self, method, task):
        sizes = [len(y) for _, y in task.clients]
        if self.fault == "unweighted":
            sizes = [1] * len(sizes)
        if self.fault == "order":
            sizes = np.arange(1, 1 + len(sizes))
        w = task.start
        for _ in range(task.rounds):
            left = [self.properties.descend(one, w, task) for one in task.clients]
            w = np.average(left, axis=0, weights=sizes)
            if self.fault == "decay":
                w = w * (1 - 1e-6)
        return self.properties.Trained(w, [w] * len(task.clients))

    def buffers(self):
        trained = [np.array([1.0]), np.array([4.0])]
        server = np.array([2.0 if self.fault != "buffers" else 1.0])
        return self.properties.Buffers([server, server], server, trained, [2, 1])


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("", set()),
        ("unweighted", {"a client in two halves"}),
        ("order", {"the order of clients", "a client in two halves"}),
        ("decay", {"one client is plain SGD", "stays at the common optimum"}),
        ("buffers", {"buffers are the server's"}),
    ],
)
def test_a_fault_is_found_by_its_property(properties, fault, found):
    rows = properties.ask(Reference(properties, fault))
    asked = [row for row in rows if row["method"] == "FedAvg"]
    assert {row["property"] for row in asked if not row["holds"]} == found
    others = [row for row in rows if row["method"] != "FedAvg"]
    assert all(row["cannot"] == "the library has no such method" for row in others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the order of clients", "coupling off"])
def test_the_adapter_of_ours_asks_what_is_here(properties, ours, name):
    import jax

    before = jax.config.jax_enable_x64
    try:
        library = ours.Library(None, "")
        asked = properties.PROPERTIES[name]
        for method in asked.methods:
            assert asked.check(library, method) < 1e-9
    finally:
        jax.config.update("jax_enable_x64", before)
