"""Every class on the GPU against the CPU: outputs, losses and gradients, in every type, padded, packed, cached."""

import copy
import re
from typing import get_args

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
# The kinds of token mixing, under the head that each family has for every token.
MIXERS = {
    "gmlp, full": ("GMLPForMaskedLM", {"spatial_weight_type": "full"}),
    "gmlp, toeplitz": ("GMLPForMaskedLM", {"spatial_weight_type": "toeplitz"}),
    "gmlp, additive gate": ("GMLPForMaskedLM", {"gate_type": "additive"}),
    "gmlp, linear gate": ("GMLPForMaskedLM", {"gate_type": "linear"}),
    "gmlp decoder, full": ("GMLPForCausalLM", {"spatial_weight_type": "full"}),
    "amlp, full": ("AMLPForMaskedLM", {"spatial_weight_type": "full"}),
    "synthesizer, learned positions": ("SynthesizerForMaskedLM", {"position_embedding_type": "learned"}),
    "synthesizer, mixture": ("SynthesizerForMaskedLM", {"attention_components": ["vanilla", "dense", "random"]}),
}
for component in ("vanilla", "dense", "random", "fixed_random", "factorized_dense", "factorized_random", "relative"):
    MIXERS[f"synthesizer, {component}"] = ("SynthesizerForMaskedLM", {"attention_components": [component]})
    MIXERS[f"synthesizer decoder, {component}"] = ("SynthesizerForCausalLM", {"attention_components": [component]})
for token_mixer in get_args(TokenMixer):
    MIXERS[f"hybrid, {token_mixer}"] = ("HybridBertForMaskedLM", {"token_mixers": [token_mixer]})
for kind in ("relu", "gelu", "glu", "bilinear", "geglu", "swiglu"):
    MIXERS[f"synthesizer, {kind}"] = ("SynthesizerForMaskedLM", {"feed_forward_type": kind})
PACKED = [name for name in MIXERS if "gate" not in name]
DECODERS = {name: value for name, value in MIXERS.items() if "decoder" in name}
DECODERS["gmlp decoder, toeplitz"] = ("GMLPForCausalLM", {})
DECODERS["amlp decoder"] = ("AMLPForCausalLM", {})


@DTYPES
@pytest.mark.parametrize("masked", [True, False], ids=["padded", "whole"])
def test_every_class(class_name, dtype, masked, build, labelled, agrees):
    """Rows are padded on the right and on the left."""
    if re.search("Image|Backbone", class_name) and masked:
        pytest.skip("images have no padding")
    model = build(class_name).train()
    agrees(model, labelled(model, masked=masked), dtype)


@HALF
def test_every_class_in_mixed_precision(class_name, dtype, build, labelled, agrees):
    model = build(class_name).train()
    agrees(model, labelled(model), dtype, autocast=True)


@DTYPES
@pytest.mark.parametrize("name", MIXERS)
def test_every_token_mixing(name, dtype, build, labelled, agrees):
    class_name, changes = MIXERS[name]
    model = build(class_name, **changes)
    agrees(model, labelled(model), dtype)


@DTYPES
@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_are_as_alone(name, dtype, build, device, assert_close):
    class_name, changes = MIXERS[name]
    model = build(class_name, **changes)
    expected_model, model = copy.deepcopy(model).to(dtype).float(), model.to(device, dtype)
    documents = [torch.randint(1, 37, (length,)) for length in (3, 1, 5)]
    ids = torch.cat([*documents, torch.zeros(2, dtype=torch.long)])[None]
    seq_idx = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2, -1, -1]])
    mask = (seq_idx >= 0).long()
    with torch.no_grad():
        packed = model(ids.to(device), attention_mask=mask.to(device), seq_idx=seq_idx.to(device)).logits[0]
        start = 0
        for document in documents:
            found = packed[start : start + len(document)]
            assert_close(found, expected_model(document[None]).logits[0], dtype)
            start += len(document)


@HALF
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "mixed"])
@pytest.mark.parametrize("name", PACKED)
def test_gradients_of_packed_documents(name, autocast, dtype, build, agrees):
    class_name, changes = MIXERS[name]
    model = build(class_name, **changes)
    ids = torch.randint(1, 37, (2, 11))
    seq_idx = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2, -1, -1], [0] * 6 + [1] * 5])
    inputs = {"input_ids": ids, "attention_mask": (seq_idx >= 0).long(), "seq_idx": seq_idx}
    inputs["labels"] = ids.where(seq_idx >= 0, -100)
    agrees(model, inputs, dtype, autocast=autocast)


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.float16, False), (torch.bfloat16, True)],
    ids=["float32", "bfloat16", "float16", "mixed precision"],
)
@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", DECODERS)
def test_steps_with_a_cache_are_the_whole_pass(name, cache_class, dtype, autocast, build, device, assert_close):
    class_name, changes = DECODERS[name]
    model = build(class_name, **changes)
    expected_model, model = copy.deepcopy(model), model.to(device)
    if not autocast:
        expected_model, model = expected_model.to(dtype).float(), model.to(dtype)
    ids = torch.randint(1, 37, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    cache = cache_class(config=model.config, **({"max_cache_len": 10} if cache_class is StaticCache else {}))
    found = []
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 8), (8, 9)):
            part, seen = ids[:, start:end].to(device), mask[:, :end].to(device)
            with torch.autocast(device.type, dtype, enabled=autocast):
                found.append(model(part, attention_mask=seen, past_key_values=cache, use_cache=True).logits)
        expected = expected_model(ids, attention_mask=mask).logits
    assert_close(torch.cat(found, dim=1)[mask.bool().to(device)], expected[mask.bool()], dtype)


@pytest.mark.parametrize("cache", ["dynamic", "static", "offloaded"])
@pytest.mark.parametrize("class_name", ["GMLPForCausalLM", "AMLPForCausalLM", "SynthesizerForCausalLM"])
def test_generated_text(class_name, cache, build, device):
    """With "static", `generate` compiles the steps on a GPU, and records them as CUDA graphs."""
    if cache == "offloaded" and device.type == "cpu":
        pytest.skip("offloads from a GPU")
    model = build(class_name, max_position_embeddings=20)
    ids = torch.randint(1, 37, (2, 5))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    model = model.to(device)
    options["cache_implementation"] = cache
    found = model.generate(ids.to(device), attention_mask=mask.to(device), **options)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize(("num_beams", "cache"), [(1, "dynamic"), (3, "dynamic"), (1, "static")])
@pytest.mark.parametrize("components", [["vanilla"], ["random"], ["dense", "vanilla"]], ids=str)
def test_generated_translations(components, num_beams, cache, build, device):
    """With "static", `generate` compiles the steps on a GPU."""
    changes = {"attention_components": components, "max_position_embeddings": 20}
    model = build("SynthesizerForConditionalGeneration", **changes)
    ids, mask = torch.randint(1, 37, (2, 6)), torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": num_beams, "pad_token_id": 0, "min_length": 8}
    expected = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    options["cache_implementation"] = cache
    found = model.to(device).generate(ids.to(device), attention_mask=mask.to(device), **options)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("length", [1, 127, 512])
@pytest.mark.parametrize("class_name", ["GMLPForMaskedLM", "AMLPForMaskedLM", "SynthesizerForMaskedLM"])
def test_wide_models_in_bfloat16(class_name, length, build, labelled, agrees, device):
    """The base models' widths, at lengths that do and do not divide into tiles."""
    if device.type == "cpu" and length > 1:
        pytest.skip("takes a minute where bfloat16 is emulated")
    width = {"hidden_size": 512, "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 1000}
    if "Synthesizer" in class_name:
        width |= {"num_attention_heads": 8, "head_dim": 64}
    model = build(class_name, **width)
    agrees(model, labelled(model, 2, length), torch.bfloat16)
