"""Sentiment140 (Go et al. 2009): tweets by their authors, positive or negative.

Expected in the data directory: sent140/ with training.1600000.processed.noemoticon.csv
(the original, 1.6 million tweets), or with sent140_subset.csv.gz (columns user,
tweet_id, date, label, split, text), checked by SHA-256. The download of the original
(81 MB, checked by SHA-256) has not been tested.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from fedtailor._base.choice import check_choice, require
from fedtailor._base.files import reason
from fedtailor._base.memory import check_memory
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import (
    Arrays,
    DataDir,
    Source,
    data_home,
    file_exists,
    read,
)
from fedtailor.data.federation.checks import check_integer
from fedtailor.data.federation.dataset import Dataset

_SUBSET = Source(
    "Sentiment140",
    ("sent140",),
    ("sent140_subset.csv.gz",),
    None,
    {
        "sent140_subset.csv.gz": (
            "sha256:1666aa53cdd20e37b5aa3a18c909bf5d0a3f0a11fdcfb55f63c1a2223aab2624"
        )
    },
)
_ORIGINAL = Source(
    "Sentiment140",
    ("sent140",),
    ("training.1600000.processed.noemoticon.csv",),
    "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
    {
        "trainingandtestdata.zip": (
            "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
        ),
    },
)
_MAX_BUCKETS = 2**31 - 2
_TOKEN = re.compile(r"https?://\S+|@\w+|[#]?\w+(?:'\w+)?|[^\w\s]+")


@register(_SUBSET, _ORIGINAL)
def sent140(
    features: Literal["words", "tokens"] = "words",
    *,
    buckets: int = 1024,
    length: int = 25,
    min_samples: int = 1,
    data_dir: DataDir = None,
) -> Dataset:
    """Tweets with their users as natural clients; label 1 is positive.

    Words are lower-cased, links and @mentions become one word each, and every word is
    hashed to a bucket.

    Args:
        features: "words": how often each bucket occurs, uint8 [N, buckets] (bag of
            words); "tokens": int32 [N, length], the bucket of each word plus 1, cut or
            padded with 0 at the end.
        buckets: number of hash buckets.
        length: number of words of a tweet that are used ("tokens" only).
        min_samples: users with fewer tweets are left out.
        data_dir: the data directory.

    Returns:
        A data set of two classes, with the users as its clients.

    Raises:
        MissingData: the file is missing and cannot be downloaded.
        ValueError: a setting is out of range, or a file is damaged or is not
            Sentiment140.
    """
    check_choice(features, ("words", "tokens"), "kind of features")
    for name, value in (
        ("buckets", buckets),
        ("length", length),
        ("min_samples", min_samples),
    ):
        check_integer(value, name, 1)
    require(
        buckets <= _MAX_BUCKETS,
        f"buckets is {buckets}; token ids have 32 bits: at most {_MAX_BUCKETS}",
    )
    has_subset = file_exists(data_home(data_dir) / "sent140" / _SUBSET.files[0])
    embed = (
        partial(_bag, buckets=buckets)
        if features == "words"
        else partial(_ids, buckets=buckets, length=length)
    )
    # The name in the cache includes all settings on which the decoded arrays depend.
    variant = f"-{features}-{buckets}-{min_samples}"
    if features == "tokens":
        variant += f"-{length}"
    load = _load_subset if has_subset else _load_original
    decode = partial(_decode, load=load, embed=embed, min_samples=min_samples)
    arrays = read(_SUBSET if has_subset else _ORIGINAL, decode, data_dir, variant)
    return Dataset(
        arrays["x"],
        arrays["y"],
        2,
        "Sent140",
        arrays.get("test"),
        arrays["user"],
        class_names=("negative", "positive"),
    )


def _decode(
    paths: list[Path],
    load: Callable[[bytes], pl.DataFrame],
    embed: Callable[[list[str]], np.ndarray],
    min_samples: int,
) -> Arrays:
    """Decode a file of tweets.

    Args:
        paths: a list with the file.
        load: content of the file -> a frame with the columns user, text and label, and
            optionally split.
        embed: texts [n] -> inputs [n, ...].
        min_samples: users with fewer tweets are left out.

    Returns:
        "x", "y" and "user" of every tweet, and "test" if the frame has a column split.
    """
    content = paths[0].read_bytes()
    try:
        frame = load(content)
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        EOFError,
        zlib.error,
        OSError,
    ) as error:
        raise ValueError(
            f"{paths[0]} is damaged or something else ({reason(error)[:200]})"
        ) from None
    complete = all(
        frame[column].null_count() == 0 for column in ("user", "text", "label")
    )
    if not complete or not np.isin(frame["label"].to_numpy(), (0, 1)).all():
        raise ValueError(
            f"{paths[0]} is damaged or something else (an empty cell, or a label that"
            " is not published)"
        )
    frame = frame.filter(pl.len().over("user") >= min_samples)
    if frame.is_empty():
        raise ValueError(
            f"Sentiment140: no user has {min_samples} tweets; lower min_samples"
        )
    arrays = {
        "x": embed(frame["text"].to_list()),
        "y": frame["label"].cast(pl.UInt8).to_numpy(),
    }
    if "split" in frame.columns:
        arrays["test"] = (frame["split"] == "test").to_numpy()
    return {**arrays, "user": np.array(frame["user"].cast(pl.String).to_list())}


def _load_subset(content: bytes) -> pl.DataFrame:
    """Read the subset, which has a header, and labels 0 and 1."""
    return pl.read_csv(content, columns=["user", "label", "split", "text"])


def _load_original(content: bytes) -> pl.DataFrame:
    """Read the original, in Latin-1 without a header, whose polarity is 0 or 4."""
    columns = ["polarity", "id", "date", "query", "user", "text"]
    text = io.BytesIO(content.decode("latin-1").encode())
    frame = pl.read_csv(text, has_header=False, new_columns=columns)
    return frame.select("user", "text", label=pl.col("polarity") / 4)


def _words(text: str) -> Iterator[int]:
    """Hashes of the words of a text."""
    for word in _TOKEN.findall(text.lower()):
        # Replace mentions and links, as hardly any of them occurs in other tweets.
        if word.startswith("@"):
            word = "@"
        elif word.startswith(("http://", "https://")):
            word = "http"
        yield zlib.crc32(word.encode())


def _bag(texts: list[str], buckets: int) -> np.ndarray:
    """The number of words of each text in each bucket, [n, buckets]."""
    check_memory(len(texts) * buckets, 1, f"{len(texts)} bags of {buckets} buckets")
    x = np.zeros((len(texts), buckets), np.uint8)
    for row, text in enumerate(texts):
        np.add.at(x[row], [word % buckets for word in _words(text)], 1)
    return x


def _ids(texts: list[str], buckets: int, length: int) -> np.ndarray:
    """The buckets of each text's first words, plus 1, padded with zeros [n, length]."""
    check_memory(len(texts) * length, 4, f"{len(texts)} sequences of {length} words")
    x = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        ids = [1 + word % buckets for word in _words(text)][:length]
        x[row, : len(ids)] = ids
    return x
