"""What PEFT, gradient checkpointing and device maps ask of a model, for every class of every family."""

import copy
import re
from typing import get_args

import pytest
import torch

from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer


CLASSES = sorted({name for family in FAMILIES.values() for name in family.models.values()})
# What a user would name who wants adapters in the feed-forward layers only.
NAMED = {"GMLP": ["proj_in", "proj_out"], "AMLP": ["qkv_proj", "out_proj"], "MLPMixer": ["proj_in"]}
NAMED["Synthesizer"] = NAMED["HybridBert"] = ["v_proj", "o_proj"]
WITH_WEIGHTS = ("AMLP", "Synthesizer", "HybridBert")  # of attention


@pytest.fixture
def build(undropped_model):
    return lambda name, **changes: undropped_model(name, **changes).eval()


@pytest.fixture
def example_of(tiny_inputs, labels_for):
    def example(model):
        inputs = tiny_inputs(model, 2, 6, masked=False)
        if "input_ids" in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return {**inputs, **labels_for(model, inputs)}

    return example


def scalar(model, inputs):
    """The loss, or of a model without one something that depends on all it computes."""
    outputs = model(**inputs)
    return outputs.loss if "labels" in inputs or "start_positions" in inputs else first(outputs).square().mean()


def first(outputs):
    return outputs[0][-1] if isinstance(outputs[0], tuple) else outputs[0]


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_is_trained_with_activation_checkpointing_too(name, build, example_of):
    changes = {"token_mixers": [*get_args(TokenMixer)]} if "HybridBert" in name else {}
    model = build(name, **changes).train()
    inputs = example_of(model)

    def gradients():
        model.zero_grad()
        scalar(model, inputs).backward()
        return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}

    expected, runs = gradients(), []
    untrained = {key for key, _ in model.named_parameters() if key not in expected or not expected[key].abs().sum()}
    # A bias common to all choices, or all tokens, changes no probability: its gradient is rounding, or zero.
    common = {"MultipleChoice": {"classifier.bias"}, "QuestionAnswering": {"qa_outputs.bias"}}
    assert untrained <= common.get(name.partition("For")[2], set())
    side = getattr(model.base_model, "encoder", getattr(model.base_model, "decoder", model.base_model))
    layers = side.layers
    norm = next(module for key, module in layers[0].named_modules() if "norm" in key)
    norm.register_forward_hook(lambda *_: runs.append(1))
    model.activation_checkpointing_enable({"use_reentrant": False})
    found = gradients()
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-4, atol=1e-6)
    assert len(runs) == 2  # once more in the backward pass


@pytest.mark.fast_cases
@pytest.mark.filterwarnings("ignore:The following device_map keys")
@pytest.mark.parametrize("name", CLASSES)
def test_device_map_with_offload(name, build, example_of, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path / "model")
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    loaded = type(model).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": int(0.6 * size)}, offload_folder=tmp_path / "disk"
    )
    assert any(parameter.is_meta for parameter in loaded.parameters()), loaded.hf_device_map
    assert not [key for key in loaded.hf_device_map if re.search(r"layers\.\d+\.", key)]  # layers stay whole
    stacks = [module for key, module in model.named_modules() if key.endswith("layers")]
    assert {type(layer).__name__ for stack in stacks for layer in stack} <= set(loaded._no_split_modules)
    inputs = example_of(model)
    with torch.no_grad():
        torch.testing.assert_close(scalar(loaded, inputs), scalar(model, inputs))


@pytest.mark.fast_cases
@pytest.mark.parametrize("target", ["all-linear", "named"])
@pytest.mark.parametrize("name", CLASSES)
def test_lora_trains_merges_saves_and_reloads(name, target, build, example_of, tmp_path):
    peft = pytest.importorskip("peft")
    family = family_of(name)
    model = build(name)
    before, output = copy.deepcopy(model.state_dict()), model.get_output_embeddings()
    head = [key for key, _ in model.named_children() if key in ("classifier", "qa_outputs")]
    config = peft.LoraConfig(
        target_modules="all-linear" if target == "all-linear" else NAMED[family], r=2, modules_to_save=head or None
    )
    torch.manual_seed(0)
    linear = {key for key, module in model.named_modules() if type(module) is torch.nn.Linear and module is not output}
    adapted = peft.get_peft_model(model, config)
    adapters = {key.split(".lora_")[0] for key, _ in adapted.named_parameters() if ".lora_" in key}
    named = {key for key in linear if key.endswith(tuple(NAMED[family]))}
    chosen = linear - {*head} if target == "all-linear" else named
    assert adapters == {f"base_model.model.{key}" for key in chosen}  # the token-mixing weights are no linear layers
    inputs = example_of(model)
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(6):
        loss = scalar(adapted, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.save_pretrained(tmp_path / "adapter")
    after = {key.replace(".base_layer", ""): tensor for key, tensor in adapted.eval().state_dict().items()}
    kept = {key: tensor for key, tensor in before.items() if key.split(".")[0] not in head}
    assert all(torch.equal(after[f"base_model.model.{key}"], tensor) for key, tensor in kept.items())
    reloaded = peft.PeftModel.from_pretrained(build(name), tmp_path / "adapter").eval()
    assert all(map(torch.equal, reloaded.state_dict().values(), adapted.state_dict().values()))
    with torch.no_grad():
        expected = scalar(adapted, inputs)
        # The same numbers, but elsewhere in memory: libraries for products may take another way at another alignment.
        torch.testing.assert_close(scalar(reloaded, inputs), expected)
        merged = reloaded.merge_and_unload()
        torch.testing.assert_close(scalar(merged, inputs), expected, rtol=1e-4, atol=1e-6)
        merged.save_pretrained(tmp_path / "merged")
        again = type(merged).from_pretrained(tmp_path / "merged").eval()
        torch.testing.assert_close(scalar(again, inputs), scalar(merged, inputs))


TEXT_CLASSES = [name for name in CLASSES if not re.search("Image|Backbone", name)]


@pytest.mark.parametrize("name", TEXT_CLASSES)
def test_embeddings_in_place_of_ids(name, build, tiny_inputs):
    model = build(name)
    inputs = tiny_inputs(model, 2, 6)
    with torch.no_grad():
        expected = model(**inputs)[0]
        for key in ("input_ids", "decoder_input_ids"):
            if key in inputs:
                embedded = {key.replace("input_ids", "inputs_embeds"): model.get_input_embeddings()(inputs[key])}
                rest = {other: value for other, value in inputs.items() if other != key}
                torch.testing.assert_close(model(**rest, **embedded)[0], expected)


@pytest.mark.parametrize("name", CLASSES)
def test_new_input_embeddings_are_used(name, build, tiny_inputs):
    model = build(name)
    inputs = tiny_inputs(model, 2, 6)
    old = model.get_input_embeddings()
    new = copy.deepcopy(old)
    with torch.no_grad():
        for weight in new.parameters():
            weight.mul_(2.0)
        before = first(model(**inputs))
        model.set_input_embeddings(new)
        assert model.get_input_embeddings() is new
        found = first(model(**inputs))
        assert not torch.allclose(found, before)
        sides = [getattr(model.base_model, side) for side in ("encoder", "decoder") if hasattr(model.base_model, side)]
        if not re.search("Image|Backbone", name):
            assert all(side.get_input_embeddings() is new for side in sides)


@pytest.mark.parametrize("name", [name for name in CLASSES if "Backbone" not in name])
def test_hidden_states_and_attentions_are_those_of_the_model_below(name, build, tiny_inputs):
    model = build(name)
    if family_of(name) in WITH_WEIGHTS:
        model.set_attn_implementation("eager")
    inputs, asked = tiny_inputs(model, 2, 6), {"output_hidden_states": True, "output_attentions": True}
    flat = {key: value.flatten(0, 1) for key, value in inputs.items()} if "MultipleChoice" in name else inputs
    with torch.no_grad():
        found, below = model(**inputs, **asked), model.base_model(**flat, **asked)
    kinds = [kind for kind, value in below.items() if kind.endswith(("hidden_states", "attentions")) and len(value)]
    assert len(kinds) == (5 if model.config.is_encoder_decoder else 1 + (family_of(name) in WITH_WEIGHTS))
    for kind in kinds:
        torch.testing.assert_close(found[kind], below[kind])


def family_of(name):
    return re.split("For|Model|Backbone", name)[0]


#: What the attention of a family can be computed by.
ATTENTION = {"GMLP": "", "MLPMixer": "", "AMLP": "sdpa flash_attn flex_attn", "Synthesizer": "sdpa flex_attn"}
ATTENTION["HybridBert"] = ATTENTION["AMLP"]


@pytest.mark.parametrize("name", CLASSES)
def test_what_transformers_may_do_with_a_class(name, build):
    model = build(name)
    assert model.main_input_name == ("input_ids" if name in TEXT_CLASSES else "pixel_values")
    supported = [kind for kind in ("sdpa", "flash_attn", "flex_attn") if getattr(model, f"_supports_{kind}")]
    assert " ".join(supported) == ATTENTION[family_of(name)]
    assert model.supports_gradient_checkpointing and model._can_compile_fullgraph
    assert model._supports_attention_backend == (family_of(name) in ("AMLP", "HybridBert"))
    assert set(model._skip_keys_device_placement) == {"past_key_values", "cache"}
