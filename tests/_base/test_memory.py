"""What does not fit into the machine's memory is refused before anything is allocated."""

import pytest

from fedtailor._base import memory
from fedtailor._base.memory import check_memory
from fedtailor.algorithms import PACFL, UCFL, FedAMP, FedAvg, FedFomo
from fedtailor.engine.runs import simulate
from fedtailor.protocol import SGD
from fedtailor.testing.problems import classification, softmax_model


def test_sizes_beyond_the_machine_are_refused_before_anything_is_allocated():
    check_memory(1000, 8, "this")
    for numbers in (10**15, float("inf"), float("nan")):
        with pytest.raises(
            ValueError,
            match=r"a billion clients needs .* GiB of memory, and this machine has",
        ):
            check_memory(numbers, 8, "a billion clients")


@pytest.mark.parametrize("kind", [UCFL, FedAMP, FedFomo, PACFL])
def test_methods_that_compare_all_pairs_refuse_more_clients_than_fit(kind, monkeypatch):
    model = softmax_model("float32")
    population = simulate(FedAvg(), classification(), model).population
    method = kind(sgd=SGD(lr=0.1))
    method.check(population)
    monkeypatch.setattr(memory, "total_memory", lambda: 150)
    with pytest.raises(
        ValueError, match=f"^{kind.about.name}, which compares each of 5"
    ):
        method.check(population)


def test_programs_are_forgotten_before_there_are_no_maps(monkeypatch, tmp_path):
    """A comparison of 126 runs was ended by XLA in its seventy-first."""
    maps, cleared = tmp_path / "maps", []
    monkeypatch.setattr(memory, "_MAPS", maps)
    monkeypatch.setattr(memory.jax, "clear_caches", lambda: cleared.append(1))
    memory.forget_programs_in_time()  # not Linux
    for count, times in ((30_000, 0), (30_001, 1)):
        maps.write_text("a map\n" * count)
        memory.forget_programs_in_time()
        assert len(cleared) == times
