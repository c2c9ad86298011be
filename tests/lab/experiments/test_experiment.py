"""Experiment files: what they may say, and where a mistake is reported."""

import sys
from importlib.metadata import EntryPoint

import pytest

from fedtailor import models
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.scenarios import SCENARIOS
from fedtailor.protocol.document import line_of, overlay, read_document

FILE = """title = "A comparison"
seeds = [0, 1]
rounds = 3

[sgd]
lr = 0.05

[scenarios.rotated]
use = "digits-rotated"
val = 0.2

[algorithms.FedAvg]
use = "fedavg"
sgd = {batch_size = 8}
grid.sgd.lr = [0.01, 0.1]

[algorithms.Hyp]
use = "hypcluster"
vary.clusters = [1, 2]

[published.mean.rotated]
FedAvg = "91.3 ± 0.5"

[quick]
seeds = [0]
algorithms.Hyp = false
scenarios.rotated = {clients = 10}
"""


@pytest.fixture
def write(tmp_path):
    def to(text, name="e.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return to


def test_deployable_leaves_out_what_cannot_be_trained_over_machines(write):
    names = ["mixed", "trees-alone", "trees-personal", "trees-federated"]
    names += ["linear-pooled", "cox-alone", "cox-stratified"]
    text = FILE.replace("rounds = 3", f"rounds = 3\nbaselines = {names}", 1)
    for more, left_out in (
        ("", set()),
        ("deployable = true\n", {"mixed", "trees-personal", "cox-stratified"}),
    ):
        baselines = load_experiment(write(more + text)).baselines
        expected = [name for name in names if name not in left_out]
        assert [it.name for it in baselines] == expected


def test_a_quick_size_may_remove_what_is_removed_already(write):
    """The file with a base removes a table, and the base's quick size does, too."""
    write(FILE)
    more = 'base = "e.toml"\nalgorithms.Hyp = false\npublished.mean.rotated.FedAvg = false\n'
    path = write(f'{more}[algorithms.Local]\nuse = "local"\n', "more.toml")
    for quick in (False, True):
        experiment = load_experiment(path, quick=quick)
        assert experiment.method_labels == ["FedAvg", "Local"]


def test_a_file_becomes_rows_columns_and_candidates(write):
    experiment = load_experiment(write(FILE))
    assert experiment.method_labels == ["FedAvg", "Hyp, clusters 1", "Hyp, clusters 2"]
    fedavg, one, two = experiment.methods
    assert [candidate.algorithm.sgd.lr for candidate in fedavg.candidates] == [
        0.01,
        0.1,
    ]
    assert {candidate.algorithm.sgd.batch_size for candidate in fedavg.candidates} == {
        8
    }
    assert [candidate.parameters for candidate in fedavg.candidates] == [
        {"sgd.lr": 0.01},
        {"sgd.lr": 0.1},
    ]
    assert (
        one.candidates[0].algorithm.clusters,
        two.candidates[0].algorithm.clusters,
    ) == (1, 2)
    assert one.candidates[0].algorithm.sgd.lr == 0.05
    assert one.candidates[0].algorithm.start == "farthest"  # as the scenario recommends
    assert experiment.runs == 2 * 3 + 1


def test_parts_of_models_are_named_and_chosen(write):
    rows = """[algorithms.FedPer]
use = "fedper"
part = "last2"

[algorithms.FedRep]
use = "fedrep"
grid.part = ["head", "not layers.1"]

[algorithms.Hyp]"""
    _, fedper, fedrep, *_ = load_experiment(
        write(FILE.replace("[algorithms.Hyp]", rows))
    ).methods
    assert [candidate.algorithm.part for candidate in fedper.candidates] == ["last2"]
    assert [candidate.algorithm.part for candidate in fedrep.candidates] == [
        "head",
        "not layers.1",
    ]


def test_the_quick_size_is_laid_over_the_published_one(write):
    experiment = load_experiment(write(FILE), quick=True)
    assert (experiment.name, experiment.size, experiment.method_labels) == (
        "e-quick",
        "quick",
        ["FedAvg"],
    )
    assert (
        experiment.scenarios[0].arguments["clients"] == 10
        and experiment.scenarios[0].arguments["val"] == 0.2
    )
    with pytest.raises(ValueError, match="no quick size"):
        load_experiment(write(FILE[: FILE.index("[quick]")]), quick=True)


def test_a_file_may_build_on_another(write):
    write(FILE)
    experiment = load_experiment(
        write(
            'base = "e.toml"\nmetrics = ["worst"]\n[algorithms.Hyp]\nstart ='
            ' "random"\nwarm = 2\n',
            "f.toml",
        )
    )
    assert experiment.file.metrics == ["worst"] and experiment.file.seeds == [0, 1]
    assert experiment.methods[1].candidates[0].algorithm.warm == 2
    assert load_experiment(
        write('base = "e.toml"', "f.toml"), quick=True
    ).method_labels == ["FedAvg"]
    with pytest.raises(ValueError, match="its own base"):
        load_experiment(write('base = "f.toml"', "f.toml"))


def test_tables_are_laid_over_tables():
    assert overlay({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}}) == {
        "a": {"b": 4, "c": 2},
        "d": 3,
    }
    assert overlay({"a": {"b": 1}, "d": True}, {"a": False, "d": False}) == {"d": False}


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "seeds = [0, 1]",
            "seed = [0]",
            2,
            "no key 'seed'; did you mean 'seeds'.*choose one of title",
        ),
        (
            "seeds = [0, 1]",
            "seeds = [0, 0]",
            2,
            r"seeds is \[0, 0\]; give every seed once",
        ),
        (
            "seeds = [0, 1]",
            "seeds = [4294967296]",
            2,
            r"seeds is \[4294967296\]; it must be less than 4294967296",
        ),
        (
            "seeds = [0, 1]",
            "seeds = [-1]",
            2,
            r"seeds is \[-1\]; it must be greater than or equal to 0",
        ),
        (
            "rounds = 3",
            "participation = nan",
            3,
            "participation is nan; it must be greater than 0",
        ),
        (
            "rounds = 3",
            "participation = 2.5",
            8,
            "participation is 2.5; it must be a share",
        ),
        (
            "{batch_size = 8}",
            '{optimizer = "adam"}',
            14,
            "optimizer is 'adam'; it must be an optax",
        ),
        (
            "rounds = 3",
            "rounds = 0",
            3,
            "rounds is 0; it must be greater than or equal to 1",
        ),
        ("rounds = 3", 'rounds = "3"', 3, "rounds is '3'; it must be a whole number"),
        ("lr = 0.05", "lr = -1.0", 6, "lr is -1.0; it must be above 0"),
        (
            "lr = 0.05",
            "rate = 0.05",
            6,
            "no hyper-parameter 'rate'; choose one of lr, momentum",
        ),
        (
            '"digits-rotated"',
            '"digits-turned"',
            9,
            "no scenario 'digits-turned'; did you mean 'digits-rotated'",
        ),
        (
            "val = 0.2",
            'val = "a fifth"',
            10,
            "val is 'a fifth'; it must be a number",
        ),
        (
            "val = 0.2",
            "vol = 0.2",
            10,
            "no argument of digits-rotated 'vol'; did you mean 'val'",
        ),
        ("val = 0.2", "", 8, "FedAvg has a grid.*validation data.*val = 0.1"),
        ('"fedavg"', '"fedavgg"', 13, "no algorithm 'fedavgg'; did you mean 'fedavg"),
        ("{batch_size = 8}", "{epochs = 0}", 14, "epochs is 0; it must be 1 or more"),
        ("{batch_size = 8}", "{steps = 0}", 14, "steps is 0; it must be 1 or more"),
        ("lr = 0.05", "lr = inf", 6, "lr is inf; it must be a finite number"),
        (
            "{batch_size = 8}",
            "{batch_size = 8.5}",
            14,
            "batch_size is 8.5; it must be a whole number",
        ),
        (
            "{batch_size = 8}",
            "{batch = 8}",
            14,
            "no hyper-parameter 'batch'; did you mean 'batch_size'",
        ),
        ("[0.01, 0.1]", "0.1", 15, "lr is 0.1; it must be a list of values"),
        ("[1, 2]", "[0, 2]", 19, "clusters is 0"),
        (
            "vary.clusters = [1, 2]",
            'only = ["turned"]',
            19,
            "no scenario in this experiment 'turned'",
        ),
        (
            "published.mean",
            "published.maen",
            21,
            "published has the key 'maen'; it must be 'mean'",
        ),
        ("FedAvg = ", "FedProx = ", 22, "no row in this experiment 'FedProx'"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write, old, new, line, message):
    assert FILE.count(old) >= 1
    with pytest.raises(ValueError, match=message) as error:
        load_experiment(write(FILE.replace(old, new, 1)))
    assert str(error.value).startswith(f"e.toml, line {line}: ") and "\n" not in str(
        error.value
    )


def test_a_mistake_in_the_quick_size_or_in_the_base_is_found_there(write):
    path = write(FILE.replace("clients = 10", "clients = 0.5"))
    with pytest.raises(ValueError, match=r"e\.toml, line 27: .*clients is 0\.5"):
        load_experiment(path, quick=True)
    with pytest.raises(ValueError, match=r"e\.toml, line 9: there is no scenario"):
        write(FILE.replace("digits-rotated", "digits-turned"))
        load_experiment(write('base = "e.toml"\nrounds = 2', "f.toml"))


def test_files_that_are_none(write, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*nothing\.toml: No such file"):
        load_experiment(tmp_path / "nothing.toml")
    with pytest.raises(ValueError, match=r"e\.toml is not a TOML file: Invalid value"):
        load_experiment(write("title = "))
    with pytest.raises(ValueError, match="title is missing"):
        load_experiment(write("rounds = 3"))
    with pytest.raises(ValueError, match="base is 3; it must be the name of a file"):
        load_experiment(write("base = 3"))


def test_none_can_be_said(write):
    text = (
        FILE
        + '[algorithms.UCFL]\nuse = "ucfl"\nstreams = "none"\n[algorithms.Ditto]\nuse ='
        ' "ditto"\nsgd.steps = "none"\n'
    )
    ucfl, ditto = load_experiment(write(text)).methods[-2:]
    assert (
        ucfl.candidates[0].algorithm.streams is None
        and ditto.candidates[0].algorithm.sgd.steps is None
    )


def test_lines_of_settings():
    text = 'a = 1\n[b.c]\nd.e = 2\n["f g"]\nh = {i = 3}\n'
    places = [("a",), ("b",), ("b", "c"), ("b", "c", "d", "e"), ("f g", "h", "i")]
    assert [line_of(text, place) for place in places] == [1, 2, 2, 3, 5]
    assert line_of(text, ("x",)) is None


def test_a_model_can_be_chosen(write):
    text = FILE.replace("val = 0.2", 'val = 0.2\nmodel = {use = "mlp", hidden = 7}')
    assert load_experiment(write(text)).scenarios[0].definition.model.hidden == (7,)
    with pytest.raises(
        ValueError, match=r"line 11: there is no model 'mpl'; did you mean 'mlp'"
    ):
        load_experiment(write(text.replace('"mlp"', '"mpl"')))
    with pytest.raises(
        ValueError, match=r"line 11: there is no argument of mlp 'width'"
    ):
        load_experiment(write(text.replace("hidden", "width")))


def test_reading_keeps_the_sources(write):
    assert read_document(write(FILE)).content["rounds"] == 3


def test_a_grid_of_millions_of_combinations_is_refused_before_they_are_made(write):
    values = [number / 1000 for number in range(400)]
    names = ("lr", "momentum", "weight_decay")
    grid = "\n".join(f"grid.sgd.{name} = {values}" for name in names)
    with pytest.raises(
        ValueError,
        match="grid has 64,000,000 combinations; at most 10,000 are possible",
    ):
        load_experiment(write(FILE.replace("grid.sgd.lr = [0.01, 0.1]", grid)))


def test_a_scenario_of_another_package_is_found_by_its_entry_point(
    tmp_path, monkeypatch
):
    (tmp_path / "outside_scenario.py").write_text(
        "from dataclasses import replace\n"
        "from fedtailor.lab.scenarios import SCENARIOS\n"
        'THEIRS = replace(SCENARIOS["digits-rotated"], name="theirs")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)

    def offered(group, name=None):
        theirs = (group, name) == ("fedtailor.scenarios", "theirs")
        return [EntryPoint(name, "outside_scenario:THEIRS", group)] if theirs else []

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", offered)
    (tmp_path / "e.toml").write_text(
        'title = "theirs"\n[scenarios.theirs]\n[algorithms.FedAvg]\nuse = "fedavg"\n'
    )
    try:
        method, *_ = load_experiment(tmp_path / "e.toml").methods
        assert method.scenario.definition.name == "theirs"
    finally:
        SCENARIOS.pop("theirs", None)
        sys.modules.pop("outside_scenario", None)


NETWORKS = """val = 0.2
model = { use = "mlp", hidden = 8 }

[[scenarios.rotated.networks]]
use = "mlp"
hidden = [16, 8]
clients = ["client-00", "client-01"]
"""


def test_clients_may_have_networks_of_their_own(write):
    experiment = load_experiment(write(FILE.replace("val = 0.2\n", NETWORKS)))
    small, large = models.mlp(8), models.mlp((16, 8))
    expected = models.by_client({"client-00": large, "client-01": large}, default=small)
    assert experiment.scenarios[0].definition.model == expected


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('clients = ["client-00", "client-01"]\n', "", "names its clients"),
        ('"client-00", "client-01"', '"client-00", "client-00"', "has two networks"),
        (
            'use = "mlp"\nhidden = [16',
            'use = "mpl"\nhidden = [16',
            "did you mean 'mlp'",
        ),
        ("hidden = [16, 8]", 'frozen = "body"', "frozen arrays"),
        ("model = {", 'models = ["linear"]\n#', "give one of the two"),
    ],
)
def test_wrong_networks_are_told(write, old, new, said):
    text = FILE.replace("val = 0.2\n", NETWORKS)
    assert old in text
    with pytest.raises(ValueError, match=said) as refused:
        load_experiment(write(text.replace(old, new)))
    assert "\n" not in str(refused.value) and "e.toml, line" in str(refused.value)
