"""Folders of the library transformers as models, without that library."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedtailor as ft
from fedtailor.models import from_huggingface, from_peft, lora, merged, save_peft
from fedtailor.models.plain import architecture_of, model_from_plain, plain_model

LENGTH, TOKENS = 6, 20
BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": TOKENS,
    "max_position_embeddings": 10,
    "pad_token_id": 0,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": TOKENS,
    "n_positions": 10,
}
QUERY = "re:(query|value).weight$"


def bert_arrays(classes=2, seed=0):
    shapes = {
        "embeddings.word_embeddings.weight": (TOKENS, 8),
        "embeddings.position_embeddings.weight": (10, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        "embeddings.LayerNorm": (8,),
        "encoder.layer.0.attention.self.query": (8, 8),
        "encoder.layer.0.attention.self.key": (8, 8),
        "encoder.layer.0.attention.self.value": (8, 8),
        "encoder.layer.0.attention.output.dense": (8, 8),
        "encoder.layer.0.attention.output.LayerNorm": (8,),
        "encoder.layer.0.intermediate.dense": (12, 8),
        "encoder.layer.0.output.dense": (8, 12),
        "encoder.layer.0.output.LayerNorm": (8,),
        "pooler.dense": (8, 8),
    }
    return with_biases(shapes, "bert.", seed) | with_biases(
        {"classifier": (classes, 8)}, "", seed
    )


def with_biases(shapes, prefix, seed):
    random, arrays = np.random.default_rng(seed), {}
    for path, shape in shapes.items():
        if path.endswith("weight"):
            arrays[f"{prefix}{path}"] = random.normal(size=shape).astype("f")
            continue
        arrays[f"{prefix}{path}.weight"] = random.normal(size=shape).astype("f")
        bias = random.normal(size=shape[-1:] if "h." in path else shape[:1])
        arrays[f"{prefix}{path}.bias"] = bias.astype("f")
    return arrays


def gpt2_arrays(width=8, tokens=TOKENS, seed=0):
    shapes = {
        "wte.weight": (tokens, width),
        "wpe.weight": (10, width),
        "h.0.ln_1": (width,),
        "h.0.attn.c_attn": (width, 3 * width),
        "h.0.attn.c_proj": (width, width),
        "h.0.ln_2": (width,),
        "h.0.mlp.c_fc": (width, 4 * width),
        "h.0.mlp.c_proj": (4 * width, width),
        "ln_f": (width,),
    }
    return with_biases(shapes, "transformer.", seed)


def folder(place, config, arrays):
    place.mkdir(exist_ok=True, parents=True)
    (place / "config.json").write_text(json.dumps(config))
    save_file(arrays, place / "model.safetensors")
    return place


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("bert"), BERT, bert_arrays())


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("gpt2"), GPT2, gpt2_arrays())


def token_ids(rows=5, seed=1):
    x = np.random.default_rng(seed).integers(1, TOKENS, size=(rows, LENGTH))
    x[1, 3:] = 0
    return jnp.asarray(x, jnp.int32)


def moved(model, seed=3):
    start = model.init(jax.random.key(0))
    noise = np.random.default_rng(seed).normal(size=start.shape)
    return start + 0.1 * jnp.asarray(noise, start.dtype)


def outputs(model, theta, x):
    """Compiled as one program, which takes less time than each of its steps."""
    return jax.jit(model.logits)(theta, x)


# folders
# --------------------------------------------------------------------------------------


def test_the_trained_weights_are_the_start_and_are_frozen_once(bert):
    network = from_huggingface(str(bert))
    model = lora(network, 2, QUERY, train="head").bind((LENGTH,), 2)
    assert model.architecture.inner.trained is None
    assert len(model.architecture.adapted) == 2
    expected = bert_arrays()
    for path, array in model.frozen.items():
        np.testing.assert_array_equal(array, expected[path], strict=True)
    assert set(expected) == {*model.frozen, "classifier.weight", "classifier.bias"}
    whole, key = network.bind((LENGTH,), 2), jax.random.key(0)
    np.testing.assert_allclose(
        outputs(whole, whole.init(key), token_ids()),
        outputs(model, model.init(key), token_ids()),
        rtol=0,
        atol=1e-5,
    )


def test_padding_changes_nothing(bert, gpt2):
    x = token_ids()
    longer = jnp.pad(x, ((0, 0), (0, 2)))
    network = from_huggingface(str(bert))
    short, long = (network.bind((length,), 2) for length in (LENGTH, LENGTH + 2))
    theta = short.init(jax.random.key(0))
    np.testing.assert_allclose(
        outputs(short, theta, x), outputs(long, theta, longer), atol=1e-5
    )
    network = from_huggingface(
        str(gpt2), task="classification", padding=0, new_head=True
    )
    short, long = (network.bind((length,), 2) for length in (LENGTH, LENGTH + 2))
    theta = short.init(jax.random.key(0))
    np.testing.assert_allclose(
        outputs(short, theta, x), outputs(long, theta, longer), atol=1e-5
    )
    changed = outputs(short, theta, x.at[0, -1].set(1 + x[0, -1] % (TOKENS - 1)))
    assert np.abs(changed - outputs(short, theta, x))[0].max() > 1e-3


def test_parts_of_files_and_other_names_are_the_same_network(bert, tmp_path):
    arrays = bert_arrays()
    whole = from_huggingface(str(bert))
    files = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (path, array) in enumerate(arrays.items()):
        files[sorted(files)[number % 2]][path] = array
    for name, part in files.items():
        save_file(part, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    index = {path: name for name, part in files.items() for path in part}
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index})
    )
    assert from_huggingface(str(tmp_path)) == whole
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no b.safetensors.*fetch all files$"):
        from_huggingface(str(tmp_path))

    # As the first files of BERT have them, and those of a network without a head.
    old = {
        path.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): array
        for path, array in arrays.items()
        if path.startswith("bert.")
    }
    body = folder(tmp_path / "body", BERT | {"architectures": ["BertModel"]}, old)
    network = from_huggingface(str(body))
    assert network.classes == 0 and network.shapes == whole.shapes
    assert set(network.trained) == {path for path in arrays if "classifier" not in path}
    assert (
        network.bind((LENGTH,), 5).size
        == sum(array.size for path, array in arrays.items() if "classifier" not in path)
        + 5 * 9
    )


def test_loading_needs_the_memory_of_one_copy(tmp_path):
    # The embedding is most of the network.
    config = GPT2 | {"n_embd": 64, "vocab_size": 40_000}
    arrays = gpt2_arrays(64, 40_000)
    place = folder(tmp_path, config, arrays)
    size = sum(array.nbytes for array in arrays.values())
    for weights, bytes_each in ((None, 4), ("bfloat16", 2)):
        tracemalloc.start()
        network = from_huggingface(str(place), weights=weights)
        adapted = lora(network, 2, "re:c_attn.weight$")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert network.trained.nbytes == size * bytes_each // 4
        assert peak < 1.2 * size * bytes_each / 4
        model = adapted.bind((LENGTH,), 40_000)
        for path, array in network.trained.items():
            assert np.shares_memory(model.frozen[path], array), path
    kept = model.frozen["transformer.wte.weight"]
    np.testing.assert_array_equal(
        kept, arrays["transformer.wte.weight"].astype(kept.dtype), strict=True
    )


def test_a_model_can_be_stored_and_named_in_a_file(bert):
    table = {
        "use": "from_huggingface",
        "folder": str(bert),
        "lora": 2,
        "where": "re:(query|value).weight$",
        "train": "head",
    }
    model = architecture_of(table, ("model",)).bind((LENGTH,), 2)
    assert model == lora(from_huggingface(str(bert)), 2, QUERY, train="head").bind(
        (LENGTH,), 2
    )
    plain = json.loads(json.dumps(plain_model(model)))
    assert str(bert) not in json.dumps(plain)
    assert model_from_plain(plain, held=model.architecture.held) == model


def test_a_whole_network_is_trained_stored_and_opened(bert, tmp_path):
    x = np.asarray(token_ids(12))
    federation = ft.federation.from_arrays(x, np.arange(12) % 2, ["a", "b"] * 6)
    method = ft.Local(sgd=ft.SGD(lr=0.01, steps=1, batch_size=4))
    network = from_huggingface(str(bert))
    run = ft.run(method, federation, network, rounds=1, directory=tmp_path / "run")
    run.export(tmp_path / "models")
    own = run.personal("a")
    start = own.model.init(jax.random.key(0))
    assert 0 < np.abs(own.theta - start).max() < 1
    for back in (
        ft.open(tmp_path / "run").personal("a"),
        ft.load_models(tmp_path / "models")["a"],
    ):
        assert back.model == own.model
        np.testing.assert_array_equal(back.theta, own.theta)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"model_type": "t5"}, {}, "only bert, gpt2, .* from_torch$"),
        ({"is_decoder": True}, {}, "is_decoder = True, which is not known"),
        ({"hidden_act": "mish"}, {}, "hidden_act = 'mish'"),
        ({"quantization_config": {"bits": 4}}, {}, "quantized weights"),
        (
            {"num_hidden_layers": 2},
            {},
            "model.safetensors has no 'bert.encoder.layer.1",
        ),
        ({"num_attention_heads": 3}, {}, "do not fit its config.json"),
        (
            {},
            {"padding": TOKENS},
            "padding is 20, and the network's tokens are 0 to 19",
        ),
        ({}, {"task": "next-token"}, "predicts no next token"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, change, options, message):
    place = folder(tmp_path, BERT | change, bert_arrays())
    with pytest.raises(ValueError, match=message) as refused:
        from_huggingface(str(place), **options)
    assert "\n" not in str(refused.value)


def test_what_does_not_fit_is_one_line(bert, gpt2, tmp_path):
    def refused(message, function):
        with pytest.raises(ValueError, match=message) as error:
            function()
        assert "\n" not in str(error.value)

    read = from_huggingface(str(bert))
    refused("cannot read .*config.json", lambda: from_huggingface(str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    refused("has no model.safetensors", lambda: from_huggingface(str(tmp_path)))
    (tmp_path / "pytorch_model.bin").touch()
    refused("it has pytorch_model.bin", lambda: from_huggingface(str(tmp_path)))
    refused("2 classes, and the data have 3; new_head", lambda: read.bind((6,), 3))
    refused("positions for 10; truncate", lambda: read.bind((11,), 2))
    refused("leave masks out", lambda: read.bind((2, 6), 2))
    refused(
        "names no|is nothing of this model",
        lambda: lora(read, 2, "re:q_proj.weight$").bind((6,), 2),
    )
    refused(
        "pad_token_id; give padding",
        lambda: from_huggingface(str(gpt2), task="classification"),
    )
    for name, content in {
        "tokenizer_config.json": {"pad_token": "[PAD]"},
        "tokenizer.json": {"added_tokens": [{"id": 3, "content": "[PAD]"}]},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    save_file(bert_arrays(), tmp_path / "model.safetensors")
    refused(
        "pads with the token 0, and the folder's tokenizer with 3",
        lambda: from_huggingface(str(tmp_path)),
    )
    folder(tmp_path, GPT2, gpt2_arrays())
    assert from_huggingface(str(tmp_path)).padding == 3
    refused("pass classes=20", lambda: from_huggingface(str(gpt2)).bind((6,), 7))
    model = read.bind((LENGTH,), 2)
    refused(
        "takes token ids",
        lambda: outputs(model, model.init(jax.random.key(0)), jnp.zeros((2, LENGTH))),
    )
    x = np.full((12, LENGTH), TOKENS, np.int32)
    federation = ft.federation.from_arrays(x, np.arange(12) % 2, ["a", "b"] * 6)
    refused(
        "the token 20, and the network knows 0 to 19",
        lambda: ft.run(ft.FedAvg(), federation, read, rounds=1),
    )


# adapters
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_rank", [0, 1])
def test_an_adapter_comes_back_from_its_folder(gpt2, tmp_path, local_rank):
    network = from_huggingface(str(gpt2), padding=0)
    where = "transformer.h.0.attn.c_attn.weight,transformer.h.0.mlp.c_proj.weight"
    model = lora(network, 2, where, alpha=4, local_rank=local_rank)
    model = model.bind((LENGTH,), TOKENS, ft.models.token_cross_entropy)
    theta = moved(model)
    save_peft(model, theta, tmp_path / "adapter", base="gpt2")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 2 + local_rank and config["fan_in_fan_out"]
    assert config["base_model_name_or_path"] == "gpt2"
    arrays = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    place = "base_model.model.transformer.h.0.attn.c_attn"
    w = gpt2_arrays()["transformer.h.0.attn.c_attn.weight"]
    total = w + (arrays[f"{place}.lora_B.weight"] @ arrays[f"{place}.lora_A.weight"]).T
    whole, vector = merged(model, theta)
    part = whole.part("transformer.h.0.attn.c_attn.weight").take(vector)
    np.testing.assert_allclose(total, part.reshape(w.shape), atol=1e-6)

    back = from_peft(network, tmp_path / "adapter")
    back = back.bind((LENGTH,), TOKENS, ft.models.token_cross_entropy)
    x = token_ids()
    np.testing.assert_allclose(
        outputs(back, back.init(jax.random.key(5)), x),
        outputs(model, theta, x),
        atol=1e-5,
    )


def test_heads_travel_with_adapters(bert, tmp_path):
    network = from_huggingface(str(bert), new_head=True)
    model = lora(network, 2, QUERY, train="head").bind((LENGTH,), 3)
    theta = moved(model)
    save_peft(model, theta, tmp_path / "adapter")
    back = from_peft(network, tmp_path / "adapter")
    assert back.train_whole == "classifier"
    back = back.bind((LENGTH,), 3)
    np.testing.assert_allclose(
        outputs(back, back.init(jax.random.key(5)), token_ids()),
        outputs(model, theta, token_ids()),
        atol=1e-5,
    )
    # A start may have arrays that begin the adapters, of the right rank only.
    with pytest.raises(ValueError, match="give the rank of these factors"):
        lora(network, 3, QUERY, train="head", start=back.architecture.given).bind(
            (LENGTH,), 3
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type = 'IA3', and only plain LoRA"),
        ({"use_dora": True}, "use_dora = True"),
        ({"rank_pattern": {"query": 4}}, "rank_pattern"),
    ],
)
def test_other_adapters_are_refused(bert, tmp_path, change, message):
    network = from_huggingface(str(bert))
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2} | change)
    )
    with pytest.raises(ValueError, match=message):
        from_peft(network, tmp_path)


def test_what_peft_has_not_is_refused(bert, tmp_path):
    network = from_huggingface(str(bert))
    whole = network.bind((LENGTH,), 2)
    with pytest.raises(ValueError, match="save_peft takes a model of lora"):
        save_peft(whole, whole.init(jax.random.key(0)), tmp_path / "adapter")
    with pytest.raises(ValueError, match="from_peft takes a network of from_hugg"):
        from_peft(ft.models.mlp(4), tmp_path)
    with pytest.raises(ValueError, match=r"cannot read .*adapter_config.json"):
        from_peft(network, tmp_path)
    model = lora(network, 2, "re:word_embeddings.weight$").bind((LENGTH,), 2)
    with pytest.raises(ValueError, match="for dense layers only"):
        save_peft(model, model.init(jax.random.key(0)), tmp_path / "adapter")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_head", 0),
        ("pad_token_id", "x"),
        ("architectures", 2),
        ("model_type", {}),
        ("n_layer", "x"),
    ],
)
def test_a_folder_of_other_values_is_refused_in_a_line(tmp_path, key, value):
    place = folder(tmp_path / "gpt2", {**GPT2, key: value}, gpt2_arrays())
    with pytest.raises(ValueError) as refused:
        from_huggingface(place).bind((LENGTH,), TOKENS, ft.models.token_cross_entropy)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("change", [{"r": None}, {"lora_alpha": [1]}])
def test_an_adapter_of_other_values_is_refused_in_a_line(tmp_path, change):
    network = from_huggingface(
        folder(tmp_path / "gpt2", GPT2, gpt2_arrays()), padding=0
    )
    adapted = lora(network, 2, "transformer.h.0.attn.c_attn.weight", alpha=4)
    model = adapted.bind((LENGTH,), TOKENS, ft.models.token_cross_entropy)
    place = save_peft(
        model, model.init(jax.random.key(0)), tmp_path / "own", base="gpt2"
    )
    path = place / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError) as refused:
        from_peft(network, place)
    assert "\n" not in str(refused.value)
