"""gMLP and aMLP as decoders: causality, caches, generation."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, pipeline

import tokenmixers
from tokenmixers import AMLPForCausalLM, GMLPForCausalLM, GMLPForMaskedLM, MLPMixerConfig


SIZES = {
    "vocab_size": 23,
    "hidden_size": 10,
    "intermediate_size": 14,
    "num_hidden_layers": 3,
    "max_position_embeddings": 14,
    "is_decoder": True,
}
KINDS = {
    "gmlp-toeplitz": (GMLPForCausalLM, {"spatial_weight_type": "toeplitz"}),
    "gmlp-full": (GMLPForCausalLM, {"spatial_weight_type": "full"}),
    "gmlp-additive": (GMLPForCausalLM, {"gate_type": "additive"}),
    "amlp-toeplitz": (AMLPForCausalLM, {"attention_size": 6}),
    "amlp-full": (AMLPForCausalLM, {"attention_size": 6, "spatial_weight_type": "full"}),
    "amlp-eager": (AMLPForCausalLM, {"attention_size": 6, "attn_implementation": "eager"}),
}


@pytest.fixture(scope="module", params=KINDS)
def model(request, randomise):
    model_class, fields = KINDS[request.param]
    model = randomise(model_class(model_class.config_class(**SIZES, **fields))).double().eval()
    model.generation_config.eos_token_id = None
    return model


def reference(model, ids: torch.Tensor) -> torch.Tensor:
    """Logits for one sequence, written out token by token from the paper's formulas, with causal sums."""
    state = dict(model.model.named_parameters())
    size = model.config.max_position_embeddings

    def norm(x, name, eps):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def linear(x, name):
        return x @ state[f"{name}.weight"].mT + state[f"{name}.bias"]

    x = state["embed_tokens.weight"][ids]
    for index in range(model.config.num_hidden_layers):
        name = f"layers.{index}"
        y = norm(x, f"{name}.norm", 1e-6)
        z = F.gelu(linear(y, f"{name}.proj_in"))
        passed, gate = z.chunk(2, -1) if model.config.gate_type == "split" else (z, z)
        gate = norm(gate, f"{name}.sgu.norm", 1e-5)
        weight, bias = state[f"{name}.sgu.spatial_proj.weight"], state[f"{name}.sgu.spatial_proj.bias"]
        mixed = []
        for i in range(len(ids)):
            terms = [(weight[size - 1 + j - i] if weight.dim() == 1 else weight[i, j]) * gate[j] for j in range(i + 1)]
            mixed.append(sum(terms) + bias[i])
        mixed = torch.stack(mixed)
        if f"{name}.attention.qkv_proj.weight" in state:
            query, key, value = linear(y, f"{name}.attention.qkv_proj").chunk(3, -1)
            attended = []
            for i in range(len(ids)):
                scores = torch.stack([query[i] @ key[j] / math.sqrt(key.shape[1]) for j in range(i + 1)]).softmax(0)
                attended.append(sum(score * value[j] for j, score in enumerate(scores)))
            mixed = mixed + linear(torch.stack(attended), f"{name}.attention.out_proj")
        z = passed + mixed if model.config.gate_type == "additive" else passed * mixed
        x = x + linear(z, f"{name}.proj_out")
    return norm(x, "norm", 1e-6) @ state["embed_tokens.weight"].mT


@pytest.mark.parametrize("length", [1, 7, 14])
def test_logits_and_gradients_equal_the_formula(model, length):
    ids = torch.randint(1, 23, (length,))
    found, expected = model(ids[None]).logits[0], reference(model, ids)
    torch.testing.assert_close(found, expected)
    weights, parameters = torch.randn_like(found), list(model.parameters())
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(ours, theirs)


def test_the_future_has_no_influence_and_no_gradient(model):
    embeddings = torch.randn(2, 9, 10, dtype=torch.float64, requires_grad=True)
    logits = model(inputs_embeds=embeddings).logits
    (gradient,) = torch.autograd.grad(logits[:, 4].square().sum(), embeddings)
    assert (gradient[:, 5:] == 0).all() and (gradient[:, :5] != 0).any(dim=-1).all()


@given(data=st.data())
def test_cached_and_uncached_logits_agree(data, model, pad, padded_layouts):
    lengths, padded, offsets = data.draw(padded_layouts(max_length=14, min_padded=2))
    # A prompt may be padded anywhere, a token that follows it is real.
    rows = [torch.randint(1, 23, (length,)) for length in lengths]
    ids, mask = pad(rows, padded, offsets)
    ids = ids.clamp(max=22)
    cuts = sorted(data.draw(st.sets(st.integers(1, padded - 1), max_size=4)))
    with torch.no_grad():
        whole = model(ids, mask).logits
        cache, parts = None, []
        for start, end in zip([0, *cuts], [*cuts, padded], strict=True):
            output = model(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            parts.append(output.logits)
    real = mask.bool()
    # Until a row's first token has been seen, its position is not known: what was cached then is padding.
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real])
    for row, offset, logits in zip(rows, offsets, whole, strict=True):
        torch.testing.assert_close(logits[offset : offset + len(row)], model(row[None]).logits[0])


def greedy(model, prompt: torch.Tensor, steps: int) -> list[int]:
    """The plainest loop: no cache, no batch, no padding."""
    ids = prompt.tolist()
    for _ in range(steps):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
    return ids


def test_generate_is_the_greedy_loop_for_left_padded_prompts(model):
    prompts = [torch.randint(1, 23, (length,)) for length in (3, 6, 1)]
    ids = torch.stack([F.pad(prompt, (6 - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([F.pad(torch.ones_like(prompt), (6 - len(prompt), 0)) for prompt in prompts])
    found = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    for row, prompt in zip(found.tolist(), prompts, strict=True):
        assert row[6 - len(prompt) :] == greedy(model, prompt, 8)


def test_beams_are_those_found_without_a_cache(model):
    ids = torch.randint(1, 23, (2, 4))
    options = {"max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 3, "do_sample": False}
    with_cache = model.generate(ids, **options)
    assert torch.equal(with_cache, model.generate(ids, **options, use_cache=False))


def test_what_the_cache_holds(model):
    cache = model(torch.randint(1, 23, (2, 5)), use_cache=True).past_key_values
    attention = getattr(model.config, "attention_size", 0)
    assert len(cache.layers) == 3 and cache.get_seq_length() == 5
    for layer in cache.layers:
        assert layer.keys.shape == (2, 1, 5, model.config.gate_size)
        assert layer.values.shape == (2, 1, 5, 2 * attention)
    assert model(torch.randint(1, 23, (2, 5)), use_cache=False).past_key_values is None


def test_the_end_of_the_weights_is_a_sentence(model):
    with pytest.raises(ValueError, match=r"has 15 tokens.*max_position_embeddings=14"):
        model.generate(torch.randint(1, 23, (1, 10)), max_new_tokens=9, do_sample=False)
    cache = model(torch.ones(1, 3, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="cannot be given together with earlier tokens"):
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache, position_ids=torch.tensor([[3]]))


def test_static_caches_are_refused(model):
    with pytest.raises(ValueError, match="StaticCache is not supported: use a `DynamicCache`"):
        model.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, cache_implementation="static")


def test_loss_is_that_of_every_next_token(model):
    ids = torch.randint(1, 23, (3, 8))
    labels = ids.masked_fill(torch.rand(3, 8) < 0.3, -100)
    output = model(ids, labels=labels)
    terms = [
        -output.logits[row, position - 1].log_softmax(-1)[labels[row, position]]
        for row in range(3)
        for position in range(1, 8)
        if labels[row, position] != -100
    ]
    losses = torch.stack(terms).float()  # as Transformers computes it
    torch.testing.assert_close(output.loss, losses.mean())
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=7).loss, losses.sum() / 7)


def test_an_encoders_weights_make_a_decoder(model, tmp_path):
    if isinstance(model, AMLPForCausalLM):
        pytest.skip("shown with gMLP")
    config = type(model.config)(**{**model.config.to_diff_dict(), "is_decoder": False})
    encoder = GMLPForMaskedLM(config).double()
    encoder.model.load_state_dict(model.model.state_dict())
    encoder.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, is_decoder=True, dtype=torch.float64)
    ids = torch.randint(1, 23, (1, 6))
    torch.testing.assert_close(loaded.eval()(ids).logits, model(ids).logits)


def test_another_length_keeps_what_was_learned(randomise):
    model = randomise(GMLPForCausalLM(tokenmixers.GMLPConfig(**SIZES))).eval()
    ids = torch.randint(1, 23, (1, 6))
    before = model(ids).logits
    model.resize_position_embeddings(30)
    torch.testing.assert_close(model(ids).logits, before)
    assert model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None).shape == (1, 26)


@pytest.mark.parametrize("name", ["GMLPForCausalLM", "AMLPForCausalLM"])
def test_pipeline_checkpointing_and_trainer(name, tmp_path):
    model_class = getattr(tokenmixers, name)
    texts = ["the gate mixes tokens", "this example is about channels"] * 9
    tokenizer = tokenmixers.train_unigram_tokenizer(texts, 60, 64, show_progress=False, kind="decoder")
    config = model_class.config_class(
        **{**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "eos_token_id": 1}
    )
    model = model_class(config)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    run = pipeline("text-generation", model=str(tmp_path / "saved"))
    answers = run(["the gate", "channels are"], max_new_tokens=4, batch_size=2)
    assert all(answer[0]["generated_text"].startswith("the gate") for answer in answers[:1])

    rows = [{"input_ids": tokenizer(text)["input_ids"][:8]} for text in texts]
    rows = [{**row, "labels": row["input_ids"]} for row in rows if len(row["input_ids"]) == 8]
    args = {"output_dir": str(tmp_path / "run"), "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    trainer = Trainer(model, TrainingArguments(**args, max_steps=3), train_dataset=rows)
    assert math.isfinite(trainer.train().training_loss)


def test_encoders_and_decoders_are_not_confused():
    with pytest.raises(ValueError, match="GMLPForCausalLM needs a configuration with `is_decoder=True`, a decoder"):
        GMLPForCausalLM(tokenmixers.GMLPConfig(**{**SIZES, "is_decoder": False}))
    with pytest.raises(ValueError, match="GMLPForMaskedLM needs a configuration with `is_decoder=False`, an encoder"):
        GMLPForMaskedLM(tokenmixers.GMLPConfig(**SIZES))
    with pytest.raises(StrictDataclassError, match="leave `image_size` out"):
        tokenmixers.GMLPConfig(**SIZES, image_size=32)
    with pytest.raises(StrictDataclassError, match="not causal"):
        MLPMixerConfig(is_decoder=True)
