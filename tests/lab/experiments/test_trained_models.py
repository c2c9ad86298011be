"""Networks with frozen arrays and adapters, as files and the command line write them."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedtailor.lab.experiments.option_text import architecture_of_text
from fedtailor.models import frozen, lora, mlp, start_file
from fedtailor.models.plain import architecture_of
from fedtailor.protocol.plain import ConfigError

PLACE = ("model",)


def test_files_and_options_make_what_python_makes(tmp_path):
    file = tmp_path / "base.safetensors"
    save_file({"layers.1.bias": np.ones(5, np.float32)}, file)
    assert architecture_of(
        {"use": "mlp", "hidden": 5, "frozen": "not head"}, PLACE
    ) == frozen(mlp(5), "not head")
    assert architecture_of_text("mlp:hidden=5,frozen=not head") == frozen(
        mlp(5), "not head"
    )
    written = {
        "use": "mlp",
        "hidden": 5,
        "lora": 2,
        "where": "layers.1.weight",
        "alpha": 4,
        "train": "head",
        "freeze_a": True,
        "start": str(file),
        "start_digest": start_file(file, None).digest,
    }
    assert architecture_of(written, PLACE) == lora(
        mlp(5), 2, "layers.1.weight", alpha=4, train="head", freeze_a=True, start=file
    )
    half = architecture_of({**written, "precision": "bfloat16"}, PLACE)
    assert half == architecture_of(written, PLACE).in_precision("bfloat16")
    assert half.bind((6,), 3).architecture.held


def test_a_precision_is_of_the_whole_network():
    for wrap in (frozen, lora):
        with pytest.raises(ValueError, match="call in_precision on what"):
            wrap(mlp(5).in_precision("bfloat16"), where="layers.*")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"frozen": "head", "lora": 2}, "name one of the two"),
        ({"alpha": 2.0}, "name one of the two"),
        ({"frozen": "head", "alpha": 2.0}, "alpha is a key of lora"),
        ({"lora": "two"}, "lora is 'two'"),
        ({"lora": 0}, "rank is 0"),
        ({"frozen": "head", "start": "nowhere.safetensors"}, "cannot read arrays"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(keys, message):
    with pytest.raises(ConfigError, match=message) as refused:
        architecture_of({"use": "mlp", **keys}, PLACE)
    assert "\n" not in str(refused.value)


def test_another_file_than_the_others_have_is_refused(tmp_path):
    file = tmp_path / "base.safetensors"
    save_file({"layers.1.bias": np.ones(64, np.float32)}, file)
    table = {"use": "mlp", "frozen": "not head", "start": str(file)}
    with pytest.raises(ConfigError, match="holds other arrays than asked for"):
        architecture_of({**table, "start_digest": "0" * 32}, PLACE)
