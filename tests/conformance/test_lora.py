"""Methods that treat the two factors of adapters apart: FedSA-LoRA and FFA-LoRA."""

import numpy as np

from conformance.examples import PLAIN
from fedtailor.algorithms import FedAvg, FedPer
from fedtailor.engine.runs import run
from fedtailor.models import lora, mlp
from fedtailor.testing import classification

CLIENTS, ROUNDS = 4, 2


def thetas(done):
    return np.stack([own.theta for own in done.personal_models().values()])


def test_fedsa_lora_averages_a_and_leaves_b_with_its_client():
    method = FedPer(sgd=PLAIN, part="lora_b")
    done = run(method, classification(CLIENTS), lora(mlp(5), rank=2), ROUNDS)
    a, b = done.model.part("lora_a"), done.model.part("lora_b")
    models = thetas(done)
    assert (np.ptp(a.take(models), axis=0) == 0).all()
    assert (np.ptp(b.take(models), axis=0) > 0).any()
    assert done.summary().bytes_up == CLIENTS * ROUNDS * 4 * a.size


def test_ffa_lora_sends_b_only_and_its_a_is_the_same_for_all():
    network = lora(mlp(5), rank=2, freeze_a=True)
    done = run(FedAvg(sgd=PLAIN), classification(CLIENTS), network, ROUNDS)
    assert all(path.endswith("lora_b") for path in done.model.paths)
    assert done.summary().bytes_up == CLIENTS * ROUNDS * 4 * done.model.size
    assert (np.ptp(thetas(done), axis=0) == 0).all() and np.abs(thetas(done)).max() > 0
    # B A is linear in B, so that the mean of what clients send is their mean adapter.
    assert any(path.endswith("lora_a") for path in done.model.frozen)
