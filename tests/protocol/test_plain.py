"""The notation of values in files: there and back, and what is wrong at which key."""

from dataclasses import dataclass

import pytest

import fedtailor as ft
from fedtailor.aggregation.pipelines import Clip, GaussianNoise
from fedtailor.engine.training import Participation, Privacy, RunSpec
from fedtailor.protocol.algorithm import Algorithm
from fedtailor.protocol.plain import (
    ConfigError,
    RefusedSettings,
    configured,
    flatten,
    from_plain,
    parse,
    to_plain,
)


@dataclass(frozen=True)
class Window:
    length: int
    names: tuple[str, ...] = ()
    stride: float | None = None


def spec(**settings):
    model = ft.models.mlp(8).bind((4,), 3)
    return RunSpec(ft.Ditto(lam=0.3), model, 5, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seed": 3, "evaluate_every": 2, "until_converged": True, "metrics": ("f1",)},
        {"participation": 2, "uplink": (Clip(0.5), GaussianNoise(1.0, norm=0.5))},
        {"participation": Participation(0.5, sampling="poisson")},
        {"privacy": Privacy(evaluate=False)},
        {"privacy": Privacy(probe="open", sum_threshold=0.9, sum_scope="round")},
    ],
)
def test_a_run_is_what_its_manifest_says(settings):
    given = spec(**settings)
    plain = given.to_plain()
    found = RunSpec.from_plain(plain, 5)
    assert found.to_plain() == plain
    assert found.model == given.model and found.privacy == given.privacy
    assert found.participation == given.participation


def test_defaults_are_left_out_so_that_older_manifests_stay_equal():
    assert set(spec().to_plain()) == {"run", "algorithm", "model"}
    assert set(spec().to_plain()["run"]) == {"seed", "evaluate_every", "participation"}


def test_arrays_beside_a_table_stand_in_it_by_their_text():
    given = ft.models.lora(ft.models.mlp(8), 2).bind((4,), 3).architecture
    table = to_plain(given)
    known = {repr(arrays): arrays for arrays in given.held}
    assert from_plain(ft.models.Architecture, table, known=known) == given
    with pytest.raises(ConfigError):
        from_plain(ft.models.Architecture, table)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("algorithm", "lam"), "x", r"lam is 'x'; it must be a number"),
        (("algorithm", "sgd", "lr"), [1], r"sgd.lr is \[1\]"),
        (("algorithm", "lambda"), 1.0, "lambda is not known to this version"),
        (("algorithm", "name"), "ditto2", "there is no 'ditto2' installed here"),
        (("algorithm", "sgd", "type"), "Adam", "there is no 'Adam' installed here"),
        (
            ("algorithm", "sgd", "optimizer"),
            "adam.<locals>",
            r"optimizer is .*set in Python",
        ),
        (("run", "participation", "fraction"), 2.0, "fraction is 2.0"),
        (("privacy", "probe"), "shut", r"probe is 'shut'; it must be 'refused' or"),
        (("model", "architecture", "hidden"), "x", "only your code knows"),
    ],
)
def test_a_wrong_entry_of_a_manifest_is_told_with_its_key(path, value, said):
    plain = spec(privacy=Privacy(evaluate=False)).to_plain()
    table = plain
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    with pytest.raises(ValueError, match=said) as refused:
        RunSpec.from_plain(plain, 5)
    assert "\n" not in str(refused.value)


def test_missing_entries_are_told_apart_from_none():
    with pytest.raises(ConfigError, match=r"^length is missing$"):
        from_plain(Window, {"type": "Window"})
    window = from_plain(Window, {"length": 3, "names": []})
    assert window == Window(3)
    assert from_plain(Window, to_plain(Window(1, ("a",), 0.5))) == Window(
        1, ("a",), 0.5
    )


def test_values_of_people_name_the_key_with_its_path():
    method = configured(ft.Ditto(), {"sgd": {"lr": 0.5}, "lam": 2}, ("m",))
    assert method.sgd.lr == 0.5 and method.lam == 2.0
    for changes, place, said in (
        ({"sgd": {"lrr": 1}}, ("m", "sgd", "lrr"), "did you mean 'lr'"),
        ({"sgd": {"batch_size": "x"}}, ("m", "sgd", "batch_size"), "a whole number"),
        ({"sgd": 3}, ("m", "sgd"), "sgd is 3"),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            configured(ft.Ditto(), changes, ("m",))
        assert refused.value.place == place
    with pytest.raises(RefusedSettings) as refused:
        configured(ft.Ditto(), {"lam": -1.0}, ("m",))
    assert refused.value.place == ("m", "lam")


@pytest.mark.parametrize(
    ("plain", "place", "said"),
    [
        ({"length": 1, "lenght": 2, "names": 3}, ("w", "names"), "names is 3; it must"),
        ({"names": ["a"]}, ("w",), r"length is missing in \[w\]"),
        ({"length": 1, "names": ["a", 2]}, ("w", "names"), r"names is \['a', 2\]"),
        ({"length": 1, "stride": "x"}, ("w", "stride"), "stride is 'x'; it must be a"),
    ],
)
def test_a_table_is_checked_against_its_type(plain, place, said):
    with pytest.raises(ConfigError, match=said) as refused:
        parse(Window, plain, ("w",))
    assert refused.value.place == place


def test_an_unknown_key_is_told_before_a_missing_one():
    with pytest.raises(ConfigError, match="no setting 'evaluat'; did you mean 'eval"):
        parse(Privacy, {"evaluat": True}, ("privacy",), what="setting")
    with pytest.raises(ConfigError, match=r"choose one of .*uplink") as refused:
        parse(Privacy, {"x": True}, ("privacy",), what="setting", also=("uplink",))
    assert refused.value.place == ("privacy", "x")
    with pytest.raises(ConfigError, match=r"^sum_range is 0; it must") as refused:
        parse(Privacy, {"secure_aggregation": True, "sum_range": 0.0}, ("privacy",))
    assert refused.value.place == ("privacy", "sum_range")


def test_tables_are_flattened_by_dotted_name():
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {
        "a.b": 1,
        "a.c.d": 2,
        "e": 3,
    }


def test_a_class_that_is_given_is_the_base_of_the_one_in_the_table():
    assert isinstance(from_plain(Algorithm, to_plain(ft.FedAvg())), ft.FedAvg)
