"""Data sets of PyTorch and Hugging Face as they are: read by what they can do."""

import numpy as np
import pytest

from fedtailor.data.federation import from_arrays, from_dataset
from fedtailor.models import token_cross_entropy


class Pairs:
    """A map-style data set, such as those of PyTorch: tensors convert by `__array__`."""

    class Tensor:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return np.array(self.values, dtype)

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return self.Tensor(self.x[number]), int(self.y[number])


class Columns:
    """A data set of columns, such as those of Hugging Face."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, number):
        return {name: values[number] for name, values in self.columns.items()}


X = np.arange(48.0).reshape(12, 2, 2)
Y = np.arange(12) % 3
OWNERS = np.array(["a", "b"])[np.arange(12) // 6]


def same(federation):
    expected = from_arrays(X, Y, OWNERS)
    np.testing.assert_array_equal(federation.x, expected.x)
    np.testing.assert_array_equal(federation.y, expected.y)
    assert federation.names == expected.names
    for ours, theirs in zip(federation.train, expected.train, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_they_are_the_same_as_arrays():
    same(from_dataset({"a": Pairs(X[:6], Y[:6]), "b": Pairs(X[6:], Y[6:])}))
    same(from_dataset(Pairs(X, Y), OWNERS))
    same(from_dataset(Columns(image=X.tolist(), label=Y, site=OWNERS), "site"))
    named = Columns(pixels=X, kind=Y, site=OWNERS, note=["-"] * 12)
    same(from_dataset(named, "site", x="pixels", y="kind"))


@pytest.mark.extra
def test_data_sets_of_pytorch_are_read():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    utils = torch.utils.data

    class Transformed(utils.Dataset):
        """With a transform, and labels of no dimension."""

        def __len__(self):
            return len(X)

        def __getitem__(self, number):
            return torch.tensor(X[number]) / 2 * 2, torch.tensor(Y[number])

    same(from_dataset(Transformed(), OWNERS))
    whole = utils.TensorDataset(torch.tensor(X), torch.tensor(Y))
    same(from_dataset(whole, OWNERS))
    parts = {"a": utils.Subset(whole, range(6)), "b": utils.Subset(whole, range(6, 12))}
    same(from_dataset(parts))


class Tokenizer:
    """Letters a to z are 1 to 26, and 0 is padding, as Hugging Face's give them."""

    def __init__(self, pad=0, length=4):
        self.pad, self.length = pad, length

    def __len__(self):
        return 27

    def __call__(self, texts):
        ids = [[ord(letter) - 96 for letter in text] for text in texts]
        missing = [[self.pad] * (self.length - len(row)) for row in ids]
        return {
            "input_ids": [row + pad for row, pad in zip(ids, missing, strict=True)],
            "attention_mask": [
                [1] * len(row) + [0] * len(pad)
                for row, pad in zip(ids, missing, strict=True)
            ],
        }


class Named:
    """A feature of Hugging Face with names of classes."""

    names = ("no", "yes", "perhaps")


TEXTS = ["abc", "de", "fghi", "j"] * 3
DATA = Columns(text=TEXTS, label=Y % 2, site=OWNERS)
NUMBERED = Columns(text=TEXTS, number=Y, label=Y % 2, site=OWNERS)


def test_texts_become_tokens():
    DATA.features = {"label": Named()}
    federation = from_dataset(DATA, "site", tokenizer=Tokenizer())
    assert federation.x.dtype == np.int32
    assert federation.x[:2].tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]
    assert federation.class_names == Named.names and federation.classes == 3
    np.testing.assert_array_equal(federation.y, Y % 2)

    # Without a mask all ids are tokens.
    def plain(texts):
        return Tokenizer()(texts)["input_ids"]

    other = from_dataset({"a": DATA, "b": DATA}, x="text", tokenizer=plain)
    assert other.x[:12].tolist() == federation.x.tolist()


def test_next_tokens_are_targets():
    lines = Columns(text=TEXTS, site=OWNERS)
    federation = from_dataset(lines, "site", tokenizer=Tokenizer(), next_token=True)
    assert federation.x[:2].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert federation.y[:2].tolist() == [[2, 3, -1], [5, -1, -1]]
    assert federation.classes == 27 and federation.loss == token_cross_entropy


def _fails(texts):
    raise ValueError("no pad_token\nset one")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": _fails}, "the tokenizer fails: no pad_token$"),
        (
            {"tokenizer": lambda texts: [list(text) for text in texts]},
            "1 to 4 tokens, and models take one length; have it pad",
        ),
        ({"tokenizer": Tokenizer(pad=1)}, r"pads with \[1\], which texts hold"),
        ({"tokenizer": Tokenizer(), "x": "number"}, "the inputs are no texts"),
        ({"next_token": True}, "give the tokenizer"),
        (
            {"next_token": True, "tokenizer": _fails},
            "give classes=network.known_tokens",
        ),
    ],
)
def test_what_a_tokenizer_should_not_do(options, message):
    with pytest.raises(ValueError, match=message) as refused:
        from_dataset(NUMBERED, "site", **{"x": "text", **options})
    assert "\n" not in str(refused.value)


class Splits(dict):
    """The splits of a data set, as Hugging Face's `DatasetDict`."""

    column_names = None


SPLITS = Splits(train=DATA, test=DATA)
TABLE = Columns(u=Y / 2, v=Y / 2, label=Y, site=OWNERS)


def named(*names):
    """A data set whose classes have names."""

    class Labels:
        pass

    Labels.names = names
    data = Columns(u=X, label=Y % 2)
    data.features = {"label": Labels()}
    return data


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Pairs(X, Y), {}, "a single data set does not say whose its examples are"),
        (iter([]), {"client": OWNERS}, "has no length"),
        ({}, {}, "there is no data set"),
        ({"a": Pairs(X[:0], Y)}, {}, "has no examples"),
        ({"a": Pairs(X, Y)}, {"client": OWNERS}, "leave it out"),
        ({"a": Pairs(X, Y), "b": Pairs(X[:, 0], Y)}, {}, "give all one shape"),
        ({"a": [1, 2]}, {}, "not a pair"),
        ({"a": Pairs(X, Y)}, {"x": "image"}, "have no columns"),
        ({"a": Columns(u=Y, v=Y)}, {}, "name that of the target with y"),
        ({"a": Columns(u=Y, v=Y, label=Y)}, {}, "name one with x"),
        ({"a": Columns(u=Y, label=Y)}, {"x": "z"}, "there is no column 'z'"),
        ({"a": Columns(text=["one"] * 12, label=Y)}, {}, "texts into tokens"),
        ("imdb", {"client": "site"}, "'imdb' is the name of a data set; load it first"),
        (SPLITS, {}, "Splits has the splits train, test; give one of them"),
        (SPLITS, {"client": "site"}, "Splits has the splits"),
        ({"a": SPLITS}, {}, "Splits has the splits"),
        (
            TABLE,
            {"client": "ward"},
            "no column 'ward'; the data set has u, v, label, site",
        ),
        (TABLE, {"client": "site", "x": ["u", "label"]}, "x names the column 'label'"),
        (TABLE, {"client": "site", "x": "site"}, "x names the column 'site'"),
        (TABLE, {"client": "site", "x": ["u", "u"]}, "x names the column 'u', which"),
        (
            {"a": Columns(u=X, label=[0, None] * 6)},
            {},
            "example 1 has nothing in the column 'label'; leave such examples out",
        ),
        ({"a": [{"u": X[0], "label": 0}, {"label": 1}]}, {}, "there is no column 'u'"),
        (
            {"a": named("no", "yes"), "b": named("yes", "no")},
            {},
            "class 0, 1, ... is no, yes for 'a' and yes, no for 'b'; cast both",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(data, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        from_dataset(data, **options)
    assert "\n" not in str(refused.value)


def test_each_example_is_read_once():
    """A transform that draws at random is applied once for all columns."""

    class Counted(Columns):
        def __getitem__(self, number):
            read.append(number)
            return super().__getitem__(number)

    read: list[int] = []
    data = Counted(u=X, v=Y / 2, label=Y, site=OWNERS)
    from_dataset(data, "site", x=["u", "v"])
    # The first one also tells which columns there are.
    assert sorted(set(read)) == list(range(12)) and len(read) <= 12 + 2


def test_token_ids_need_no_tokenizer():
    ids = [[number, 2, 0] for number in range(12)]
    data = Columns(text=TEXTS, input_ids=ids, label=Y, site=OWNERS)
    federation = from_dataset(data, "site", x="input_ids")
    assert federation.x.dtype == np.int32 and federation.x.tolist() == ids
