"""job.toml and the clients' tables: read as written, and every mistake is a line that
says where.
"""

import os

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from fedtailor.algorithms import FineTune
from fedtailor.models import mlp, start_file
from fedtailor.protocol import SGD
from fedtailor.remote.job.job import read_job, split_address
from fedtailor.remote.job.job_template import template
from fedtailor.remote.job.table import read_rows
from fedtailor.remote.service import check_client_count

TEXT = template("wards", "coordinator.example.org:9092", 4)


def job_of(path, *changes):
    text = TEXT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (path / "job.toml").write_text(text)
    return read_job(path / "job.toml")


def test_the_template_is_a_job(tmp_path):
    job = job_of(tmp_path)
    assert (
        job.title,
        job.address,
        job.spec.rounds,
        job.minimum,
        job.spec.privacy.evaluate,
    ) == (
        "wards",
        "coordinator.example.org:9092",
        50,
        3,
        False,
    )
    assert job.spec.model == mlp(32) and isinstance(job.spec.algorithm, FineTune)
    assert (
        job.spec.algorithm.sgd == SGD(lr=0.05, epochs=1, batch_size=32)
        or job.spec.algorithm.sgd.lr == 0.05
    )
    assert (
        job.schema.columns == {"age": None, "ward": ("surgery", "medicine")}
        and job.schema.width == 3
    )


def test_a_job_of_others_does_not_choose_what_is_read_here(tmp_path):
    (tmp_path / "other.toml").write_text('title = "mine"\n')
    (tmp_path / "job.toml").write_text('base = "other.toml"\n' + TEXT)
    with pytest.raises(ValueError, match="only experiment files have a base"):
        read_job(tmp_path / "job.toml")


def test_a_job_names_a_file_by_its_content(tmp_path):
    """Its author would else read any network of a client, by a path alone: methods send
    what clients begin with.
    """
    file, pipe = tmp_path / "base.safetensors", tmp_path / "pipe.safetensors"
    save_file({"layers.1.bias": np.ones(32, np.float32)}, file)
    os.mkfifo(pipe)
    digest = start_file(file, None).digest

    def read(path, *more):
        lines = ['frozen = "layers.1.bias"', f'start = "{path}"', *more]
        return job_of(tmp_path, ('use = "mlp"', "\n".join(['use = "mlp"', *lines])))

    with pytest.raises(ValueError, match=r'the file needs start_digest = "..."'):
        read(file)
    with pytest.raises(ValueError, match="holds other arrays than asked for"):
        read(file, f'start_digest = "{"0" * len(digest)}"')
    folder = f'use = "from_huggingface"\nfolder = "{tmp_path}"'
    with pytest.raises(ValueError, match="and not the rows of tables"):
        job_of(tmp_path, ('use = "mlp"', folder))
    with pytest.raises(ValueError, match="there is no such file"):
        read(pipe, f'start_digest = "{digest}"')
    assert read(file, f'start_digest = "{digest}"').spec.model.given


def test_hyperparameters_are_read(tmp_path):
    job = job_of(tmp_path, ('use = "finetune"  ', 'use = "finetune"\nbest = true  '))
    assert job.spec.algorithm.best


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "rounds = 50",
            "rounds = 0",
            "line 27: rounds is 0; it must be greater than or equal to 1",
        ),
        (
            "rounds = 50",
            "rouns = 5",
            (
                "line 27: there is no setting of [training] 'rouns'; did you mean"
                " 'rounds'?"
            ),
        ),
        ("rounds = 50", "", "line 26: rounds is missing in [training]"),
        (
            "age = { mean = 50, sd = 20 }",
            'age = "numbr"',
            (
                'line 15: age is \'numbr\'; a column is "number", "category",'
                ' "boolean", "date", a list of categories, or'
                " { mean = ..., sd = ... } of numbers"
            ),
        ),
        (
            "age = { mean = 50, sd = 20 }",
            f"age = {[str(number) for number in range(1001)]}",
            "line 15: age has 1,001 categories of up to 4 characters; it can have 1,000",
        ),
        (
            "age = { mean = 50, sd = 20 }",
            f"age = {['x' * 201, 'y']}",
            "line 15: age has 2 categories of up to 201 characters; it can have 1,000",
        ),
        (
            "age = { mean = 50, sd = 20 }",
            'age = ["x"]',
            "line 15: age has the categories ['x']; it needs two or more, each once",
        ),
        (
            "age = { mean = 50, sd = 20 }",
            'label = "number"',
            "line 15: 'label' is the target; it cannot be an input",
        ),
        (
            '["no", "yes"]',
            '["no"]',
            "line 10: classes is ['no']; it needs two or more, each once",
        ),
        (
            "test = 0.2",
            "test = 0.95",
            "line 12: val and test take 1.05 of all rows",
        ),
        (
            '"finetune"',
            '"fintune"',
            "line 23: there is no algorithm 'fintune'; did you mean 'finetune'?",
        ),
        ("lr = 0.05", 'lr = "x"', "line 24: lr is 'x'; it must be a number"),
        ("hidden = 32", "hidden = 0", "line 18: a hidden layer of the MLP is 0 wide"),
        (
            "coordinator.example.org:9092",
            "org",
            "line 6: 'org' is not an address; write host:port",
        ),
        ("[data]", "[dat]", "line 8: there is no table 'dat'; did you mean 'data'?"),
        ("[model]", "[method.model]", "the table [model] is missing"),
        ('use = "mlp"', 'use = ["mlp"]', "use is ['mlp']; it must be a text"),
        ("[coordinator]", "boosting = false\n[coordinator]", "boosting is False"),
        (
            "evaluate = false",
            "evaluate = 1",
            "line 35: evaluate is 1; it must be true or false",
        ),
        (
            "uplink = []",
            'uplink = [{ use = "clp" }]',
            "line 36: there is no uplink transform 'clp'",
        ),
        (
            "uplink = []",
            "uplink = [{ norm = 1.0 }]",
            "line 36: a transform needs a name: use = robust-mean | clip | gaussian-noise",
        ),
        (
            "uplink = []",
            'uplink = [{ use = "byzantine" }]',
            "line 36: Byzantine clients are for simulations; leave them out of a job",
        ),
        (
            "uplink = []",
            'uplink = [{ use = "clip", norm = -1 }]',
            "line 36: clip: norm is -1.0; it must be above 0",
        ),
        (
            "uplink = []",
            'uplink = [{ use = "quantize", block = 1.5 }]',
            "line 36: quantize: block is 1.5",
        ),
        (
            "uplink = []",
            'uplink = [{ use = "cast" }, { use = "clip" }]',
            "line 36: the uplink applies Cast before Clip",
        ),
        (
            'sampling = "uniform"',
            'sampling = "x"',
            ("line 32: sampling is 'x'; it must be 'uniform', 'samples' or 'poisson'"),
        ),
        (
            "deadline = 300",
            "deadline = -1",
            "line 30: deadline is -1 seconds; it must be at least 5 (clocks may",
        ),
        (
            "deadline = 300",
            "deadline = 4.9",
            "line 30: deadline is 4.9 seconds; it must be at least 5 (clocks may",
        ),
        (
            "deadline = 300",
            "deadline = 604801",
            "and at most 604800 (a week)",
        ),
        (
            "deadline = 300",
            "deadline = inf",
            "line 30: deadline is inf; it must be a finite number",
        ),
        (
            "deadline = 300",
            "deadline = nan",
            "line 30: deadline is nan; it must be a finite number",
        ),
        (
            "participation = 1.0",
            "participation = inf",
            "line 31: participation is inf; it must be a finite",
        ),
        (
            "seed = 0",
            "seed = 4294967296",
            "line 28: seed is 4294967296; it must be less than or",
        ),
        (
            "rounds = 50",
            "rounds = 2147483648",
            "line 27: rounds is 2147483648; it must be less than or equal to",
        ),
        ("epochs = 1", "epochs = 0", "line 24: epochs is 0; it must be 1 or more"),
        ("lr = 0.05", "lr = inf", "line 24: lr is inf; it must be a finite number"),
        (
            "test = 0.2",
            "keep_correlated = false",
            "line 12: inputs stay correlated over machines, as products of columns would tell",
        ),
        (
            "seed = 0",
            "seed = [0]",
            "line 28: seed is [0]; it must be a whole number",
        ),
        ("hidden = 32", "hidden = [", "is not a TOML file"),
        (
            'use = "mlp"',
            'use = "auto"',
            "a job trains one model: `fedtailor compare TABLE --model auto` chooses",
        ),
    ],
)
def test_mistakes_are_one_line_with_the_line_in_the_file(tmp_path, old, new, said):
    with pytest.raises(ValueError) as refused:
        job_of(tmp_path, (old, new))
    assert said in str(refused.value) and "\n" not in str(refused.value)


FINETUNES = "sgd = { lr = 0.05, epochs = 1, batch_size = 32 }"
ONE_NOISE = "batch_size = 8, dp_noise = 2.0, dp_norm = 1.0"


@pytest.mark.parametrize(
    "head",
    [
        "batch_size = 8, dp_noise = 0.01, dp_norm = 1.0",
        "batch_size = 60, dp_noise = 2.0, dp_norm = 1.0",
        f"{ONE_NOISE}, dp_delta = 1e-6",
    ],
)
def test_private_training_that_one_account_does_not_cover_is_refused(tmp_path, head):
    """Clients counted all steps by the first noise: epsilon 1.97 where it has no bound."""

    def read(head):
        both = f"sgd = {{ {ONE_NOISE} }}\nhead = {{ {head} }}"
        method = ('"finetune"', '"fedrep"')
        return job_of(tmp_path, method, (FINETUNES, both)).spec.algorithm

    assert read(ONE_NOISE).head.dp_noise == 2.0
    with pytest.raises(ValueError, match="the same dp_noise, dp_delta and") as refused:
        read(head)
    assert "line 22: " in str(refused.value) and "\n" not in str(refused.value)


def test_the_identity_is_what_a_client_agrees_to(tmp_path):
    first = job_of(tmp_path).identity
    for old, new in (
        ("rounds = 50", "rounds = 9"),
        ("deadline = 300", "deadline = 5"),
        ("minimum = 3", "minimum = 1"),
        (":9092", ":9093"),
        ('"wards"', '"other"'),
    ):
        assert job_of(tmp_path, (old, new)).identity == first
    age, ward = "age = { mean = 50, sd = 20 }\n", 'ward = ["surgery", "medicine"]\n'
    for old, new in (
        ("lr = 0.05", "lr = 0.06"),
        ("hidden = 32", "hidden = 33"),
        ("evaluate = false", "evaluate = true"),
        (
            "uplink = []",
            'uplink = [{ use = "gaussian-noise", by = "client", norm = 1.0, multiplier = 1.0 }]',
        ),
        ("seed = 0", "seed = 1"),
        ('"medicine"', '"emergency"'),
        (age + ward, ward + age),
    ):
        assert job_of(tmp_path, (old, new)).identity != first


def test_more_clients_than_there_are_kits_are_not_waited_for(tmp_path):
    check_client_count(job_of(tmp_path), 3)
    for old, new in (
        ("minimum = 3", "minimum = 4"),
        ("participation = 1.0", "participation = 4"),
    ):
        with pytest.raises(
            ValueError,
            match=r"is 4, and 3 clients have a kit; lower it, or add clients$",
        ):
            check_client_count(job_of(tmp_path, (old, new)), 3)


def test_secure_sums_over_fewer_clients_than_three_are_not_waited_for(tmp_path):
    for minimum in ("minimum = 1", "minimum = 3"):
        job = job_of(tmp_path, ("minimum = 3", minimum))
        with pytest.raises(ValueError, match="adds over 3 clients or more, and 2 have"):
            check_client_count(job, 2)
    openly = ("secure_aggregation = true", "secure_aggregation = false")
    check_client_count(job_of(tmp_path, ("minimum = 3", "minimum = 2"), openly), 2)


@pytest.mark.parametrize(
    "text", ["a." * 20_000 + "b = 1", "[" + "a." * 20_000 + "b]", "a = " + "[" * 20_000]
)
def test_names_within_names_end_in_one_line(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^[^\n]*nested too deeply$"):
        read_job(path)


def test_addresses():
    assert split_address("a.org:1") == ("a.org", 1) and split_address("[::1]:9092") == (
        "::1",
        9092,
    )
    for wrong in (
        "a.org",
        "a.org:0",
        "a.org:65536",
        ":9",
        "https://a.org:9",
        "a.org:x",
        "evil@a.org:9",
        "a b.org:9",
        "a.org\n:9",
        "::1:9",
        "[a.org]:9",
        "[::1:9",
        "a.org?x:9",
        "[fe80::1%a@b]:9",
        "a.org:\uff19",
    ):
        with pytest.raises(ValueError, match="is not an address"):
            split_address(wrong)


TABLE = pl.DataFrame(
    {
        "age": [30, 41],
        "id": [1, 2],
        "ward": ["medicine", "surgery"],
        "label": ["yes", "no"],
    }
)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_becomes_arrays_in_the_schemas_order(tmp_path, name):
    (TABLE.write_csv if name.endswith("csv") else TABLE.write_parquet)(tmp_path / name)
    rows = read_rows(tmp_path / name, job_of(tmp_path).schema)
    np.testing.assert_array_equal(
        rows.x, np.array([[30, 0, 1], [41, 1, 0]], np.float32)
    )
    np.testing.assert_array_equal(rows.y, np.array([1, 0], np.int32))
    assert (rows.x.dtype, rows.y.dtype) == (np.float32, np.int32)


def test_a_regression_has_numbers_as_targets(tmp_path):
    TABLE.with_columns(label=pl.Series([0.5, 2.5])).write_csv(tmp_path / "t.csv")
    schema = job_of(tmp_path, ('classes = ["no", "yes"]', "#")).schema
    np.testing.assert_array_equal(
        read_rows(tmp_path / "t.csv", schema).y, np.array([0.5, 2.5], np.float32)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"ward": ["medicine", "Surgery"]},
            "t.csv, row 2: 'ward' is 'Surgery'; the job knows surgery, medicine",
        ),
        (
            {"ward": ["medicine", None]},
            "t.csv, row 2: 'ward' is empty; the job knows surgery, medicine",
        ),
        (
            {"label": ["maybe", "no"]},
            "t.csv, row 1: 'label' is 'maybe'; the job knows no, yes",
        ),
        ({"age": [None, 3.0]}, "t.csv, row 1: 'age' is empty or not finite"),
        (
            {"age": ["x", "y"]},
            "t.csv, row 1: 'age' is 'x', which is not a number such as 1234.5; mend it, or"
            " leave the cell empty",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_row(tmp_path, change, said):
    columns = {name: pl.Series(values, strict=False) for name, values in change.items()}
    TABLE.with_columns(**columns).write_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError) as refused:
        read_rows(tmp_path / "t.csv", job_of(tmp_path).schema)
    assert str(refused.value) == said


def test_a_column_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("age,ward,age,label\n30,medicine,31,yes\n")
    with pytest.raises(
        ValueError,
        match=r"column name 'age' stands 2 times, in columns 1 and 3; rename all but one$",
    ):
        read_rows(tmp_path / "t.csv", job_of(tmp_path).schema)


def test_files_that_are_none_are_refused(tmp_path):
    schema = job_of(tmp_path).schema
    TABLE.drop("ward").write_csv(tmp_path / "less.csv")
    TABLE.clear().write_csv(tmp_path / "empty.csv")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    (tmp_path / "t.parquet").write_bytes(b"PK")
    for name, said in (
        ("none.csv", "there is no file"),
        ("t.xlsx", "is of no known kind; it must end in .csv, .tsv, .parquet"),
        ("t.parquet", "cannot be read as Parquet"),
        ("less.csv", "less.csv has no column 'ward'; its columns are age, id, label"),
        ("empty.csv", "empty.csv has no rows"),
    ):
        with pytest.raises(ValueError) as refused:
            read_rows(tmp_path / name, schema)
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_category_that_stands_for_a_missing_cell_is_refused(tmp_path):
    """A model of such a job would read its cells as missing where it predicts."""
    with pytest.raises(
        ValueError, match="ward has the category 'NA', which stands for a"
    ):
        job_of(tmp_path, ('"medicine"', '"NA"'))
