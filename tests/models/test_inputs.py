"""Several inputs of an example: one array in federations and files, which networks take
apart.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.data.federation import Dataset
from fedtailor.models import Inputs
from fedtailor.models.adapters import Functions

RNG = np.random.default_rng(0)
PARTS = {
    "tokens": RNG.integers(0, 17, (12, 5)),
    "mask": RNG.random((12, 5)) < 0.7,
    "numbers": RNG.standard_normal((12, 3)).astype(np.float32),
}
SIDE_BY_SIDE = Inputs.of(PARTS)


def test_what_is_packed_is_unpacked():
    packed = SIDE_BY_SIDE.pack(PARTS)
    assert packed.shape == (12, 13) and packed.dtype == np.float32
    for name, part in SIDE_BY_SIDE.unpack(packed).items():
        np.testing.assert_array_equal(part, PARTS[name])
    one = SIDE_BY_SIDE.unpack(packed[3])
    assert one["tokens"].tolist() == PARTS["tokens"][3].tolist()
    assert one["mask"].dtype == bool and one["tokens"].dtype.kind == "i"


def test_tokens_and_a_mask_are_whole_numbers():
    inputs = Inputs.of({"ids": PARTS["tokens"], "mask": PARTS["mask"]})
    packed = inputs.pack({"mask": PARTS["mask"], "ids": PARTS["tokens"]})
    assert packed.dtype == np.int32
    np.testing.assert_array_equal(inputs.unpack(packed)["mask"], PARTS["mask"])
    np.testing.assert_array_equal(packed[:, :5], PARTS["tokens"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokens": PARTS["tokens"]}, "takes {all}: add mask, numbers"),
        ({**PARTS, "age": np.ones(12)}, "takes {all}: leave age out"),
        (
            {**PARTS, "mask": PARTS["mask"].astype(float)},
            "the input 'mask' is float32, and the network takes bool; convert it",
        ),
        (
            {**PARTS, "numbers": np.zeros((12, 2), np.float32)},
            "the input 'numbers' has the shape [2], and the network takes [3]",
        ),
        ({**PARTS, "mask": PARTS["mask"][:4]}, "different numbers of examples"),
        ({**PARTS, "tokens": PARTS["tokens"] + 2**24}, "the largest is 16777216"),
        (
            {**PARTS, "numbers": np.array(["a"] * 12)},
            "must have numbers for each example",
        ),
    ],
)
def test_other_inputs_are_refused_in_a_line(given, words):
    words = words.format(all=SIDE_BY_SIDE)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        SIDE_BY_SIDE.pack(given)
    assert "\n" not in str(refused.value)


LABELS, OWNERS = np.arange(12) % 2, np.repeat(["a", "b"], 6)


def made(x):
    return ft.federation.from_arrays(x, LABELS, OWNERS)


def pairs():
    return [({name: PARTS[name][n] for name in PARTS}, n % 2) for n in range(12)]


def test_every_way_to_a_federation_keeps_the_inputs(tmp_path):
    packed = SIDE_BY_SIDE.pack(PARTS)
    np.savez(
        tmp_path / "own.npz",
        y=LABELS,
        client=OWNERS,
        **{f"x.{name}": part for name, part in PARTS.items()},
    )
    columns = [{**pair[0], "label": pair[1]} for pair in pairs()]
    federation = made(PARTS)
    ways = [
        federation,
        ft.federation.load(ft.federation.save(federation, tmp_path / "saved")),
        ft.federation.from_npz(tmp_path / "own.npz"),
        ft.federation.from_dataset(pairs(), OWNERS),
        ft.federation.from_dataset(columns, OWNERS, x=list(PARTS)),
        ft.federation.from_dataset({"a": pairs()[:6], "b": pairs()[6:]}),
        ft.federation.from_partition(
            Dataset(PARTS, LABELS, 2, client=OWNERS), ft.federation.Natural()
        ),
    ]
    for found in ways:
        assert found.inputs == SIDE_BY_SIDE
        np.testing.assert_array_equal(found.x, packed)
    assert ways[1].digest == federation.digest != made(packed).digest


def test_clients_with_other_inputs_are_refused():
    fewer = [({"tokens": pair[0]["tokens"]}, pair[1]) for pair in pairs()]
    with pytest.raises(ValueError, match="inputs of the clients have the shapes"):
        ft.federation.from_dataset({"a": pairs(), "b": fewer})
    one = [(pair[0]["numbers"], pair[1]) for pair in pairs()]
    with pytest.raises(ValueError, match="inputs of the clients have the shapes"):
        ft.federation.from_dataset({"a": one, "b": pairs()})
    with pytest.raises(ValueError, match="give all examples the same"):
        ft.federation.from_dataset([*pairs(), *fewer], ["a"] * 24)


def test_what_normalizes_would_change_tokens():
    with pytest.raises(ValueError, match="apply it to the others before"):
        ft.federation.from_arrays(PARTS, LABELS, OWNERS, scale=2.0)


class Both(Functions):
    """A network that takes its inputs apart."""

    @property
    def inputs(self):
        return SIDE_BY_SIDE


def begin(key):
    return np.zeros((3, 2), np.float32)


def scores(weights, x):
    return SIDE_BY_SIDE.unpack(x)["numbers"] @ weights


PLAIN = Functions(begin, scores)
LOCAL = ft.Local(ft.SGD(lr=0.1, epochs=1, batch_size=6))


def test_a_network_is_given_what_it_takes():
    other = {("ids" if name == "tokens" else name): PARTS[name] for name in PARTS}
    with pytest.raises(ValueError, match="add tokens and leave ids out"):
        ft.run(LOCAL, made(other), Both(begin, scores), rounds=1)
    with pytest.raises(ValueError, match="would be rounded; use float32"):
        Both(begin, scores).bind((13,), 2, dtype="bfloat16")


def test_a_personal_model_takes_the_inputs_by_name():
    run = ft.run(LOCAL, made(PARTS), Both(begin, scores), rounds=1)
    by_name = run.personal("a").outputs(PARTS)
    packed = run.personal("a").outputs(SIDE_BY_SIDE.pack(PARTS))
    np.testing.assert_array_equal(by_name, packed)
    assert run.predict("a", PARTS).shape == (12,)
    by_number = run.personal("a")
    other = replace(by_number, model=replace(by_number.model, architecture=PLAIN))
    with pytest.raises(ValueError, match="the network takes one input"):
        other.outputs(PARTS)
