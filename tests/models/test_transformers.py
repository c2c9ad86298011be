"""Folders that transformers and PEFT write and read: the same outputs as theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from fedtailor.models import from_huggingface, lora, save_peft, save_start
from fedtailor.models.frozen_network import merged

pytestmark = [
    pytest.mark.extra,
    # What they call of each other.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
CLASSES, TOKENS, LENGTH = 3, 30, 7
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "num_labels": CLASSES,
}
TEXT = SMALL | {"vocab_size": TOKENS, "max_position_embeddings": 12, "pad_token_id": 0}
LLAMA = TEXT | {"num_key_value_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": TOKENS}
GPT2 |= {"n_positions": 12, "pad_token_id": 0, "num_labels": CLASSES}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
CASES = {
    "bert": ("Bert", "SequenceClassification", TEXT, "re:(query|value).weight$"),
    "gpt2": ("GPT2", "LMHeadModel", GPT2, "re:(c_attn|c_proj).weight$"),
    "gpt2 classes": ("GPT2", "SequenceClassification", GPT2, "re:c_attn.weight$"),
    "llama": ("Llama", "CausalLM", LLAMA, "re:(q|v)_proj.weight$"),
    "llama 3": (
        "Llama",
        "CausalLM",
        LLAMA
        | {"tie_word_embeddings": True, "rope_parameters": ROPE | {"rope_theta": 1e4}},
        "re:(q|v)_proj.weight$",
    ),
    "mistral": ("Mistral", "SequenceClassification", LLAMA, "re:up_proj.weight$"),
    "qwen2": ("Qwen2", "CausalLM", LLAMA, "re:(k|o)_proj.weight$"),
    "qwen3": ("Qwen3", "CausalLM", LLAMA | {"head_dim": 8}, "re:(q|k)_proj.weight$"),
    "vit": (
        "ViT",
        "ImageClassification",
        SMALL | {"image_size": 8, "patch_size": 4, "num_channels": 2},
        "re:(q|v)_proj.weight$",
    ),
}


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("peft", reason="peft is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module", params=CASES)
def case(request, transformers, tmp_path_factory):
    """(its module in transformers, its folder, inputs, what counts, where)."""
    import torch

    torch.manual_seed(0)
    name, ending, settings, where = CASES[request.param]
    config = getattr(transformers, f"{name}Config")(**settings)
    kind = ending if ending.startswith("LM") else f"For{ending}"
    module = getattr(transformers, f"{name}{kind}")(config).eval()
    # Zeros and ones, from which biases and norms start, would hide what they are for.
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    folder = tmp_path_factory.mktemp(name)
    module.save_pretrained(folder)
    random = np.random.default_rng(0)
    if name == "ViT":
        x = random.normal(size=(3, 8, 8, 2)).astype(np.float32)
    else:
        x = random.integers(1, TOKENS, size=(3, LENGTH)).astype(np.int32)
        x[1, 4:] = 0
    return module, folder, x, where


def outputs(model, theta, x):
    """Compiled as one program, which takes less time than each of its steps."""
    return jax.jit(model.logits)(theta, x)


def torch_outputs(module, x):
    import torch

    with torch.no_grad():
        if x.dtype == np.float32:
            return module(torch.tensor(x).permute(0, 3, 1, 2)).logits.numpy()
        ids = torch.tensor(x).long()
        return module(ids, attention_mask=(ids != 0).long()).logits.numpy()


def bound(network, x):
    is_next = network.task == "next-token"
    loss = ft.models.token_cross_entropy if is_next else ft.models.cross_entropy
    return lambda it: it.bind(x.shape[1:], TOKENS if is_next else CLASSES, loss)


def check(ours, theirs, x):
    """The outputs of padding are nobody's."""
    counts = x != 0 if ours.ndim == 3 else slice(None)
    np.testing.assert_allclose(
        np.asarray(ours)[counts], theirs[counts], rtol=1e-5, atol=1e-5
    )


def test_outputs_and_adapters_are_theirs(case, tmp_path):
    import peft

    module, folder, x, where = case
    network = from_huggingface(str(folder))
    bind = bound(network, x)
    adapted = bind(lora(network, 2, where, alpha=3.0))
    start = adapted.init(jax.random.key(0))
    check(outputs(adapted, start, jnp.asarray(x)), torch_outputs(module, x), x)

    noise = np.random.default_rng(1).normal(size=start.shape)
    theta = start + 0.3 * jnp.asarray(noise, start.dtype)
    ours = outputs(adapted, theta, jnp.asarray(x))
    assert np.abs(np.asarray(ours) - torch_outputs(module, x)).max() > 0.01
    save_peft(adapted, theta, tmp_path / "adapter", base=str(folder))
    plain = type(module).from_pretrained(folder)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    check(ours, torch_outputs(theirs, x), x)

    # The merged network goes back, too, and an adapter that PEFT writes comes here.
    whole, vector = merged(adapted, theta)
    save_start(whole, vector, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    back = type(module).from_pretrained(tmp_path).eval()
    check(ours, torch_outputs(back, x), x)
    theirs.save_pretrained(tmp_path / "again")
    read = bind(ft.models.from_peft(network, tmp_path / "again"))
    check(outputs(read, read.init(jax.random.key(2)), jnp.asarray(x)), ours, x)


def test_each_client_has_an_adapter_of_its_own(transformers, tmp_path):
    import peft

    config = transformers.GPT2Config(**GPT2)
    module = transformers.GPT2LMHeadModel(config).eval()
    module.save_pretrained(tmp_path / "base")
    lines = [
        {"speaker": name, "text": " ".join(map(str, words))}
        for name in ("Ann", "Ben", "Cem")
        for words in np.random.default_rng(len(name)).integers(1, TOKENS, (6, LENGTH))
    ]

    def tokenizer(texts):
        return [[int(word) for word in text.split()] for text in texts]

    federation = ft.federation.from_dataset(
        lines, "speaker", tokenizer=tokenizer, next_token=True, classes=TOKENS
    )
    base = from_huggingface(str(tmp_path / "base"))
    sgd = ft.SGD(lr=0.1, steps=2, batch_size=2)
    method = ft.FedPer(part="lora_b", sgd=sgd)
    run = ft.run(method, federation, lora(base, 2, "re:c_attn.weight$"), rounds=1)
    x = federation.x[:4]
    seen = []
    for name in federation.names:
        own = run.personal(name)
        save_peft(own.model, own.theta, tmp_path / name, base=str(tmp_path / "base"))
        plain = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base")
        theirs = peft.PeftModel.from_pretrained(plain, tmp_path / name).eval()
        seen.append(torch_outputs(theirs, x))
        check(own.outputs(x), seen[-1], x)
    assert np.abs(seen[0] - seen[1]).max() > 1e-5
