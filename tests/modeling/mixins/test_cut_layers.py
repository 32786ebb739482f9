"""Layers that a user cuts by hand, as with other models of Transformers; and configurations read by its own class."""

import json

import pytest
import torch
from transformers import AutoModel, PreTrainedConfig

from tokenmixers import AMLPModel, GMLPModel, HybridBertConfig, HybridBertModel, MLPMixerModel, SynthesizerModel


TYPES = ["random_synthesizer", "gmlp", "dense_synthesizer", "full_attention"]
SIZES = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
MODELS = {
    "gMLP": (GMLPModel, {"num_hidden_layers": 4}),
    "aMLP": (AMLPModel, {"num_hidden_layers": 4}),
    "MLP-Mixer": (MLPMixerModel, {"num_hidden_layers": 4}),
    "Synthesizer": (SynthesizerModel, {"num_hidden_layers": 4, "num_attention_heads": 2}),
    "hybrid": (HybridBertModel, {"token_mixers": TYPES, "num_attention_heads": 2}),
    "hybrid with a norm": (HybridBertModel, {"token_mixers": [*TYPES[2:], *TYPES[:2]], "num_attention_heads": 2}),
}


@pytest.fixture(params=MODELS)
def model(request, randomise):
    model_class, fields = MODELS[request.param]
    return randomise(model_class(model_class.config_class(**SIZES, **fields))).eval()


def layers_of(model):
    return next(
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == 4
    )


@pytest.mark.parametrize("kept", [(0, 3), (3, 1)])  # of a hybrid the last one is a block of gMLP, or of BERT
def test_a_model_with_fewer_layers_loads_as_it_was_saved(kept, model, tmp_path):
    parent, name = layers_of(model)
    setattr(parent, name, torch.nn.ModuleList(getattr(parent, name)[index] for index in kept))
    model.config.num_hidden_layers = 2
    model.save_pretrained(tmp_path)
    ids = torch.arange(16)[None]
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)


def test_layers_whose_class_was_changed_are_saved_as_what_they_are(tmp_path):
    """As PyTorch's `fully_shard` changes it."""
    model = HybridBertModel(HybridBertConfig(**SIZES, **MODELS["hybrid"][1]))
    for layer in model.layers:
        layer.__class__ = type(f"FSDP{type(layer).__name__}", (type(layer),), {})
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.token_mixers == TYPES


def test_the_fields_pass_the_checks_of_transformers_own_class(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    read = PreTrainedConfig.from_pretrained(tmp_path)  # which checks the fields that it knows
    assert read.num_hidden_layers == fields["num_hidden_layers"] == 4


def test_the_older_name_is_read_and_not_saved(tmp_path):
    older = {**HybridBertConfig(token_mixers=TYPES).to_dict(), "layer_types": TYPES}
    del older["token_mixers"]
    (tmp_path / "config.json").write_text(json.dumps(older))
    config = HybridBertConfig.from_pretrained(tmp_path)
    assert config.token_mixers == TYPES
    assert "layer_types" not in config.to_dict()
