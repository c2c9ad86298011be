"""What is used of Flower's insides stands in one file, and is where that file says."""

import ast
from pathlib import Path

import pytest

import fedtailor
from fedtailor.remote.flower import internals as flower_internals
from fedtailor.remote.flower.internals import INTERNALS

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


@pytest.mark.parametrize("name", sorted(INTERNALS))
def test_flower_has_what_is_used_of_it(name):
    pytest.importorskip("flwr")
    assert getattr(flower_internals, name) is not None


def test_nothing_else_of_flower_is_imported():
    for path in Path(fedtailor.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                is_private = module.startswith("flwr") and module not in PUBLIC
                assert not is_private, f"{path.name} imports {module}"


def test_a_name_that_has_moved_is_told(monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setitem(INTERNALS, "Node", ("proto.moved_pb2", "a reason"))
    with pytest.raises(
        ImportError, match=r"no flwr\.proto\.moved_pb2\.Node \(a reason\)"
    ):
        _ = flower_internals.Node
    with pytest.raises(AttributeError, match="no attribute 'Nodes'"):
        _ = flower_internals.Nodes
