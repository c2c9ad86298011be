"""Old names of modules."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("fedtailor.models", "Loss", "LossFunction"),
        ("fedtailor.protocol", "Task", "ClientTask"),
        ("fedtailor.tables", "Task", "TableTask"),
        ("fedtailor.pipelines", "check_order", "check_stages"),
    ],
)
def test_old_names_are_the_new_ones_with_a_warning(module, old, new):
    found = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {module}.{new}"):
        value = getattr(found, old)
    assert value is getattr(found, new)
    assert old not in dir(found) or old not in found.__all__


def test_other_names_are_missing():
    for module in ("fedtailor.models", "fedtailor.protocol", "fedtailor.tables"):
        with pytest.raises(AttributeError, match=f"{module}.*no attribute 'Nothing'"):
            _ = import_module(module).Nothing
