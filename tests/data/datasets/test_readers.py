"""Readers of public files, on small files of the same forms."""

import gzip
import importlib
import json
import os
import pickle
import struct
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.data.datasets import (
    MissingData,
    cifar10,
    emnist,
    femnist,
    mnist,
    sent140,
)
from fedtailor.data.datasets.download import sha256
from fedtailor.data.datasets.idx import read_idx, read_labelled
from fedtailor.data.federation import Natural, from_partition

KINDS = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array):
    array = np.asarray(array)
    header = struct.pack(
        f">BBBB{array.ndim}I",
        0,
        0,
        KINDS[array.dtype.str[1:]],
        array.ndim,
        *array.shape,
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(idx(array)))
    return path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_idx_files_of_every_kind(tmp_path, kind):
    array = np.arange(-6, 6).astype(kind).reshape(2, 3, 2)
    found = read_idx(write_idx(tmp_path / "x.gz", array), 3)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype and found.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(np.zeros((9, 5), np.uint8)))[:-9], "truncated or no gzip"),
        (b"no gzip", "truncated or no gzip"),
        (
            gzip.compress(idx(np.zeros((9, 5), np.uint8))[:-1]),
            "holds 44 bytes where its header, shape .9, 5.",
        ),
        (
            gzip.compress(idx(np.zeros((9, 5), np.uint8)) + b"0"),
            "holds more bytes where its header, shape .9, 5., promises 45",
        ),
        (gzip.compress(idx(np.zeros(9, np.uint8))), "not an idx file with 2 axes"),
        (gzip.compress(b"\0\0"), "not an idx file"),
        (gzip.compress(b"text, not an array"), "not an idx file"),
    ],
    ids=[
        "truncated",
        "no gzip",
        "too short",
        "too long",
        "other shape",
        "no header",
        "text",
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_idx(tmp_path / "x.gz", 2)
    assert "\n" not in str(raised.value)


def test_no_more_is_decompressed_than_the_header_promises(tmp_path):
    (tmp_path / "x.gz").write_bytes(
        gzip.compress(idx(np.zeros((9, 5), np.uint8)) + bytes(2**26))
    )  # 64 MiB in 64 kB
    tracemalloc.start()
    with pytest.raises(ValueError, match="holds more bytes where its header"):
        read_idx(tmp_path / "x.gz", 2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24


def test_a_header_that_promises_more_than_the_memory_is_refused_at_once(tmp_path):
    header = struct.pack(">BBBB2I", 0, 0, 0x0E, 2, 2**32 - 1, 2**32 - 1)
    (tmp_path / "x.gz").write_bytes(gzip.compress(header))
    with pytest.raises(
        ValueError,
        match=r"x.gz, of shape .4294967295, 4294967295. by its header, needs .* GiB",
    ):
        read_idx(tmp_path / "x.gz", 2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_unreadable_idx_file_is_not_called_damaged(tmp_path):
    (tmp_path / "x.gz").symlink_to("/proc/self/mem")
    with pytest.raises(ValueError, match=r"x.gz cannot be read: Input/output error"):
        read_idx(tmp_path / "x.gz", 2)


def test_images_and_labels_must_belong_together(tmp_path):
    images = write_idx(tmp_path / "x.gz", np.zeros((3, 28, 28), np.uint8))
    labels = write_idx(tmp_path / "y.gz", np.array([0, 1, 9], np.uint8))
    x, y = read_labelled(images, labels, range(10))
    assert x.shape == (3, 28, 28) and y.tolist() == [0, 1, 9]
    with pytest.raises(ValueError, match="labels 0 to 9, not 1 to 26"):
        read_labelled(images, labels, range(1, 27))
    with pytest.raises(ValueError, match=r"3 images and y\.gz 2 labels"):
        read_labelled(
            images, write_idx(tmp_path / "y.gz", np.zeros(2, np.uint8)), range(10)
        )
    with pytest.raises(ValueError, match="labels of float32, not bytes"):
        read_labelled(
            images, write_idx(tmp_path / "y.gz", np.full(3, 1.5, np.float32)), range(10)
        )
    with pytest.raises(ValueError, match="not bytes of"):
        read_labelled(
            write_idx(tmp_path / "x.gz", np.zeros((3, 14, 28), np.uint8)),
            labels,
            range(10),
        )


def write_emnist(folder, split, part, n, first=0, classes=10):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
    y = (first + np.arange(n) % classes).astype(np.uint8)
    write_idx(folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz", x)
    write_idx(folder / f"emnist-{split}-{part}-labels-idx1-ubyte.gz", y)
    return x, y


def test_emnist_is_upright_and_knows_its_parts(data_dir):
    train = write_emnist(data_dir / "emnist", "balanced", "train", 94, classes=47)
    test = write_emnist(data_dir / "emnist", "balanced", "test", 47, classes=47)
    both = emnist("balanced")
    np.testing.assert_array_equal(
        both.x, np.concatenate([train[0], test[0]]).transpose(0, 2, 1)
    )
    np.testing.assert_array_equal(both.y, np.concatenate([train[1], test[1]]))
    assert both.test is not None and both.test.tolist() == [False] * 94 + [True] * 47
    assert (
        both.classes == 47
        and both.class_names is not None
        and both.class_names[36:38] == ("a", "b")
    )
    only = emnist("balanced", "test")
    assert (
        len(only) == 47
        and only.test is not None
        and only.test.all()
        and "test" in only.name
    )


def test_emnist_letters_count_from_zero(data_dir):
    _, y = write_emnist(
        data_dir / "emnist-letters-train", "letters", "train", 52, first=1, classes=26
    )
    letters = emnist("letters", "train")
    np.testing.assert_array_equal(letters.y, y - 1)
    assert letters.class_names is not None and letters.class_names[letters.y[2]] == "C"


def test_emnist_refuses_unknown_splits_and_other_files(data_dir):
    with pytest.raises(
        ValueError,
        match=(
            r"no split of EMNIST 'byletter'; did you mean 'letters'. choose one of"
            r" byclass"
        ),
    ):
        emnist("byletter")
    with pytest.raises(ValueError, match="no part of EMNIST 'val'"):
        emnist("letters", "val")
    write_emnist(data_dir / "emnist", "byclass", "test", 62, classes=62)
    with pytest.raises(ValueError, match="is not the published file"):
        emnist("byclass", "test")


@pytest.mark.usefixtures("offline")
def test_absent_files_are_named():
    with pytest.raises(
        MissingData, match=r"MNIST is not at hand.*train-images-idx3-ubyte.gz.*mnist:"
    ):
        mnist()
    with pytest.raises(
        MissingData,
        match=r"CIFAR-10 is not at hand.*data_batch_1.bin.*cifar-10-batches-bin",
    ):
        cifar10()
    with pytest.raises(MissingData, match=r"emnist-byclass-train-images-idx3-ubyte.gz"):
        emnist()
    with pytest.raises(
        MissingData, match=r"FEMNIST .or LEAF's train.*femnist_leaf_subset.npz"
    ):
        femnist()
    with pytest.raises(MissingData, match=r"training.1600000.processed.noemoticon.csv"):
        sent140()


def test_fashion_in_the_place_of_digits_is_refused(data_dir):
    for part, n in (("train", 60), ("t10k", 10)):
        write_idx(
            data_dir / f"mnist/{part}-images-idx3-ubyte.gz",
            np.zeros((n, 28, 28), np.uint8),
        )
        write_idx(
            data_dir / f"mnist/{part}-labels-idx1-ubyte.gz", np.zeros(n, np.uint8)
        )
    with pytest.raises(
        ValueError, match=r"mnist/train-images-idx3-ubyte\.gz is not the published"
    ):
        mnist()


@pytest.fixture
def batches(monkeypatch):
    """Six batches of twenty images [20, 3072] and their labels."""
    monkeypatch.setattr(
        importlib.import_module(cifar10.__module__), "_IMAGES_PER_BATCH", 20
    )
    rng = np.random.default_rng(0)
    return [
        (
            rng.integers(0, 256, (20, 3072)).astype(np.uint8),
            rng.permutation(np.arange(20) % 10),
        )
        for _ in range(6)
    ]


NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def write_binary(data_dir, batches):
    folder = data_dir / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in zip(NAMES, batches, strict=True):
        (folder / f"{name}.bin").write_bytes(
            np.column_stack([labels.astype(np.uint8), pixels]).tobytes()
        )
    return folder


def write_python(data_dir, batches):
    folder = data_dir / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (pixels, labels) in zip(NAMES, batches, strict=True):
        (folder / name).write_bytes(
            pickle.dumps({"data": pixels, "labels": labels.tolist()}, protocol=2)
        )
    return folder


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_both_versions_of_cifar10(data_dir, batches, write):
    write(data_dir, batches)
    data = cifar10()
    planes = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(data.x[..., 2], planes[:, 2])
    np.testing.assert_array_equal(
        data.y, np.concatenate([labels for _, labels in batches])
    )
    assert data.test is not None and data.test.tolist() == [False] * 100 + [True] * 20
    assert (
        data.x.shape == (120, 32, 32, 3)
        and data.x.dtype == np.uint8
        and len(data.shift) == 3
    )


def test_damaged_cifar10_is_refused(data_dir, batches):
    folder = write_binary(data_dir, batches)
    whole = (folder / "test_batch.bin").read_bytes()
    (folder / "test_batch.bin").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"test_batch\.bin has 61459 bytes, not 61460"):
        cifar10()
    (folder / "test_batch.bin").write_bytes(b"\7" + whole[1:])
    with pytest.raises(
        ValueError, match="the test batches do not hold 2 images of each of 10 classes"
    ):
        cifar10()


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Evil(), 2), "it asks for .*print"),
        (b"nonsense", "not a batch of CIFAR-10"),
        (
            pickle.dumps(
                {"data": np.zeros((19, 3072), np.uint8), "labels": [0] * 19}, 2
            ),
            "not a batch of CIFAR-10",
        ),
        (
            pickle.dumps({"data": np.zeros((20, 3072)), "labels": [0] * 20}, 2),
            "float64 pixels",
        ),
        (pickle.dumps([1, 2], 2), "not a batch of CIFAR-10"),
        (
            pickle.dumps(
                {"data": np.zeros((20, 3072), np.uint8), "labels": [0.5] * 20}, 2
            ),
            "float64 labels, not integers",
        ),
        (
            pickle.dumps(
                {"data": np.zeros((20, 3072), np.uint8), "labels": ["a"] * 20}, 2
            ),
            "<U1 labels, not integers",
        ),
        (b"\x80\x02]q\x00(X\xff\xff\xff\x7f", "not a batch of CIFAR-10"),
    ],
)
def test_other_pickles_are_refused_unread(data_dir, batches, capsys, content, message):
    folder = write_python(data_dir, batches)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cifar10()
    assert capsys.readouterr().out == ""


def leaf(writers, pixels=784):
    rng = np.random.default_rng(len(writers))
    data = {
        name: {
            "x": (rng.integers(0, 256, (n, pixels)) / 255).tolist(),
            "y": (np.arange(n) % 62).tolist(),
        }
        for name, n in writers.items()
    }
    return {
        "users": list(writers),
        "num_samples": list(writers.values()),
        "user_data": data,
    }


def write_leaf(home, part, number, content):
    (home / part).mkdir(parents=True, exist_ok=True)
    (home / part / f"all_data_{number}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist_from_leafs_own_files(data_dir, below):
    home = data_dir / "femnist" / below
    parts = {
        ("train", 0): {"f1": 9, "f2": 5},
        ("train", 1): {"f3": 7},
        ("test", 0): {"f1": 2, "f2": 1, "f3": 3},
    }
    for (part, number), writers in parts.items():
        write_leaf(home, part, number, leaf(writers))
    data = femnist()
    assert (
        data.x.dtype == np.uint8 and data.x.shape == (27, 28, 28) and data.classes == 62
    )
    first = np.array(leaf({"f1": 9, "f2": 5})["user_data"]["f2"]["x"])
    np.testing.assert_array_equal(data.x[9:14].reshape(5, 784), np.rint(255 * first))
    federation = from_partition(data, Natural(), test="published")
    assert federation.names == ("f1", "f2", "f3")
    assert federation.train.sizes.tolist() == [
        9,
        5,
        7,
    ] and federation.test.sizes.tolist() == [2, 1, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content["user_data"]["f1"]["y"].pop(),
            "writer f1: 3 images, 2 labels",
        ),
        (
            lambda content: content["user_data"]["f1"]["x"].pop(),
            "writer f1: 2 images, 3 labels",
        ),
        (
            lambda content: content["user_data"]["f1"]["x"][0].pop(),
            "not a FEMNIST file of LEAF",
        ),
        (
            lambda content: content["user_data"]["f1"]["y"].__setitem__(0, 62),
            "a label is outside 0..61",
        ),
        (
            lambda content: content["user_data"]["f1"]["x"][1].__setitem__(0, 255.0),
            "pixels outside",
        ),
        (lambda content: content.pop("users"), "not a FEMNIST file of LEAF"),
        (
            lambda content: content["user_data"]["f1"]["x"][1].__setitem__(
                0, float("nan")
            ),
            "pixels outside",
        ),
        (
            lambda content: content["user_data"]["f1"]["y"].__setitem__(0, 1.5),
            "the labels are float64, not whole",
        ),
        (
            lambda content: content["user_data"]["f1"]["y"].__setitem__(0, 2**70),
            "not a FEMNIST file of LEAF",
        ),
    ],
)
def test_damaged_leaf_files_are_refused(data_dir, change, message):
    content = leaf({"f1": 3})
    write_leaf(data_dir / "femnist", "test", 0, content)
    change(content)
    write_leaf(data_dir / "femnist", "train", 0, content)
    with pytest.raises(ValueError, match=message) as raised:
        femnist()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\xfa", b"[" * 100_000, b"[1, 2]", b'"text"', b"{", b""],
    ids=range(6),
)
def test_files_in_leafs_place_are_refused_in_one_line(data_dir, content):
    write_leaf(data_dir / "femnist", "test", 0, leaf({"f1": 3}))
    (data_dir / "femnist/train").mkdir()
    (data_dir / "femnist/train/a.json").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\.json is not a FEMNIST file of LEAF"
    ) as raised:
        femnist()
    assert "\n" not in str(raised.value)


def test_a_pipe_in_leafs_place_is_not_waited_for(data_dir):
    write_leaf(data_dir / "femnist", "test", 0, leaf({"f1": 3}))
    (data_dir / "femnist/train").mkdir()
    os.mkfifo(data_dir / "femnist/train/a.json")
    with pytest.raises(ValueError, match=r"a\.json is not a regular file"):
        femnist()


def test_the_femnist_subset_leaves_out_images_with_two_labels(data_dir, monkeypatch):
    path = data_dir / "femnist/femnist_leaf_subset.npz"
    path.parent.mkdir(parents=True)
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    np.savez(
        path,
        x=x,
        y=np.array([10, 1, 2, 3, 61]),
        writer=np.array([1, 0, 0, 1, 1]),
        writer_name=np.array(["f1", "f2"]),
        is_test=np.array([0, 0, 1, 0, 1]),
        dup=np.array([0, 1, 0, 1, 0]),
    )
    module = importlib.import_module(femnist.__module__)
    published = replace(module._SUBSET, hashes={path.name: sha256(path)})
    monkeypatch.setattr(module, "_SUBSET", published)
    data = femnist()
    np.testing.assert_array_equal(data.x, x[[0, 2, 4]])
    assert data.y.tolist() == [10, 2, 61]
    assert data.client is not None and data.client.tolist() == ["f2", "f1", "f2"]
    assert data.test is not None and data.test.tolist() == [False, True, True]


def test_a_truncated_femnist_subset_is_refused(data_dir):
    (data_dir / "femnist").mkdir(parents=True)
    np.savez(data_dir / "femnist/femnist_leaf_subset.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="is not the published file"):
        femnist()


TWEETS = [
    ("0", "ann", "is SAD, http://t.co/x @bob"),
    ("4", "bob", "is glad! so glad http://t.co/y @ann"),
    ("4", "ann", 'says "ca\xfe\xe9" isn\'t glad'),
]


def write_tweets(data_dir, tweets=TWEETS):
    quoted = [
        (polarity, "id", "date", "NO_QUERY", user, text.replace('"', '""'))
        for polarity, user, text in tweets
    ]
    lines = [",".join(f'"{cell}"' for cell in cells) for cells in quoted]
    (data_dir / "sent140").mkdir(parents=True, exist_ok=True)
    path = data_dir / "sent140/training.1600000.processed.noemoticon.csv"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    return path


def test_tweets_become_bags_of_words(data_dir):
    write_tweets(data_dir)
    bags = sent140(buckets=5000)
    assert (
        bags.x.dtype == np.uint8
        and bags.x.shape == (3, 5000)
        and bags.y.tolist() == [0, 1, 1]
    )
    assert (
        bags.client is not None
        and bags.client.tolist() == ["ann", "bob", "ann"]
        and bags.test is None
    )
    first, second, third = bags.x.astype(int)
    assert first.sum() == 5 and second.sum() == 7 and third.sum() == 6
    assert (np.minimum(first, second)).sum() == 3, (
        "is, a link and a mention, whichever they are"
    )
    assert second.max() == 2 and third[second.argmax()] == 1, "glad, glad"
    assert len(sent140(min_samples=2)) == 2


def test_tweets_become_token_ids(data_dir):
    write_tweets(data_dir)
    tokens = sent140("tokens", buckets=5000, length=6)
    assert tokens.x.dtype == np.int32 and tokens.x.shape == (3, 6)
    first, second, _ = tokens.x
    assert (
        first[0] == second[0]
        and first[5] == 0
        and (first[:5] > 0).all()
        and (second > 0).all()
    )
    assert second[1] == second[4] and first[3] == second[5] and tokens.x.max() <= 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"features": "letters"},
            "no kind of features 'letters'; choose one of words, tokens",
        ),
        ({"buckets": 0}, "buckets is 0; it must be 1 or more"),
        ({"buckets": 10**12}, "buckets is 1000000000000; token ids have 32 bits"),
        ({"buckets": 2.5}, "buckets is 2.5; it must be a whole number"),
        (
            {"buckets": 2 * 10**9, "features": "words"},
            "3 bags of 2000000000 buckets needs 6 GiB of memory",
        ),
        (
            {"length": 10**15, "features": "tokens"},
            "3 sequences of 1000000000000000 words needs .* GiB of memory",
        ),
        ({"min_samples": 9}, "no user has 9 tweets"),
    ],
)
def test_impossible_settings_for_tweets(data_dir, monkeypatch, options, message):
    write_tweets(data_dir)
    monkeypatch.setattr("fedtailor._base.memory.total_memory", lambda: 2**30)
    with pytest.raises(ValueError, match=message):
        sent140(**options)


@pytest.mark.parametrize(
    "content",
    [
        b'"0","id","d","q","ann","text"\n"3","id","d","q","ann","text"\n',
        b'"0","id","d","q","ann","text"\n"","id","d","q","ann","text"\n',
        b'"0","id","d","q","ann","text"\n"4","id","d","q",,"text"\n',
        b"x" * 500,
        b"\0" * 500,
        b"",
    ],
    ids=["polarity", "empty polarity", "no user", "text", "zeros", "empty"],
)
def test_tweets_of_other_content_are_refused_in_one_line(data_dir, content):
    write_tweets(data_dir).write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or something else") as raised:
        sent140()
    assert "\n" not in str(raised.value)


def test_damaged_tweets_are_refused(data_dir):
    write_tweets(data_dir).write_bytes(b'"0","1"\n"4"\n')
    with pytest.raises(ValueError, match="is damaged or something else") as raised:
        sent140()
    assert "\n" not in str(raised.value)
    (data_dir / "sent140/sent140_subset.csv.gz").write_bytes(
        gzip.compress(b"user,tweet_id,date,label,split,text\n")
    )
    with pytest.raises(ValueError, match="is not the published file"):
        sent140()
