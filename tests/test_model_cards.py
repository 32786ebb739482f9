import re
import runpy
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

import tokenmixers


FOLDER = Path(tokenmixers.__file__).parent / "model_cards"
METADATA = runpy.run_path(str(Path(__file__).with_name("hub_metadata.py")))
CARDS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def test_there_are_cards():
    assert {"gmlp-base", "gmlp-large", "gmlp-xlarge", "amlp-base", "amlp-large", "gmlp-ti16-224"} <= set(CARDS)


def table(name: str) -> dict[str, str]:
    """The two-column table of a card."""
    text = (FOLDER / name / "README.md").read_text()
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in CARDS if not name.startswith("synthesizer") and "224" not in name])
def test_the_text_cards_of_encoders_without_attention_are_true(name):
    config, found = AutoConfig.from_pretrained(FOLDER / name), table(name)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert found["parameters of the encoder"] == f"{model.num_parameters():,}"
    assert found["blocks"] == str(len(model.layers))
    assert found["`hidden_size` (d_model)"] == str(config.hidden_size)
    assert found["`intermediate_size` (d_ffn)"] == str(config.intermediate_size)
    length = config.max_position_embeddings
    assert found["maximum length"] == f"{length} tokens"
    assert found[f"FLOPs of the encoder, {length} tokens"] == f"{model.forward_flops(1, length) / 1e9:.1f} B"
    if config.model_type == "mlp_mixer":
        body = model.num_parameters() - model.embed_tokens.weight.numel()
        assert found["parameters without embeddings"] == f"{body:,}"
        assert found["`token_mixing_size`"] == str(config.token_mixing_size)
        fields, defaults = config.to_dict(), tokenmixers.MLPMixerConfig().to_dict()
        assert {key for key in fields if fields[key] != defaults[key]} == {"architectures", "_name_or_path"}
        return
    numbers = model.layers[0].sgu.spatial_proj.weight.numel()
    assert found["spatial weights"] == f"Toeplitz, {numbers:,} numbers per block"
    # What the paper counts lies between the encoder alone and a vocabulary of logits for every token.
    paper = float(found["the paper's FLOPs"].removesuffix(" B")) * 1e9
    masked = 2 * 77 * config.hidden_size * config.vocab_size
    text = (FOLDER / name / "README.md").read_text()
    assert f"adds {masked / 1e9:.1f} B, {(model.forward_flops(1, length) + masked) / 1e9:.1f} B together" in text
    assert f"the {100 * (1 - (model.forward_flops(1, length) + masked) / paper):.1f} % between" in text


@pytest.mark.parametrize("name", [name for name in CARDS if name.endswith("224")])
def test_the_image_cards_are_true(name):
    config, found = AutoConfig.from_pretrained(FOLDER / name), table(name)
    for suffix, pooling in (("", "cls"), (", mean-pooled", "mean")):
        changed = type(config)(**{**config.to_dict(), "classifier_pooling": pooling})
        with torch.device("meta"):
            model = AutoModelForImageClassification.from_config(changed)
        assert found[f"parameters{suffix}"] == f"{model.num_parameters():,}"
        assert found[f"FLOPs{suffix}"] == f"{model.forward_flops() / 1e9:.2f} B"
    assert f"{float(found['parameters'].replace(',', '')) / 1e6:.1f}M" == found["the paper's count"]
    assert found["blocks"] == str(config.num_hidden_layers)
    assert (
        found["survival probability"] == f"{1 - config.drop_path_rate:.2f} (`drop_path_rate={config.drop_path_rate}`)"
    )
    assert found["`hidden_size` (d_model)"] == str(config.hidden_size)


@pytest.mark.parametrize("name", CARDS)
def test_metadata(name):
    card = ModelCard.load(FOLDER / name / "README.md")
    assert METADATA["metadata_errors"](str(card)) == []
    assert card.data.license
    assert card.data.pipeline_tag
    assert card.data.tags[0] == AutoConfig.from_pretrained(FOLDER / name).model_type.replace("_", "-")
    assert card.data.library_name == "transformers"


@pytest.mark.parametrize("name", CARDS)
def test_the_snippet_names_the_card_itself(name):
    text = (FOLDER / name / "README.md").read_text()
    assert set(re.findall(r'from_pretrained\("model_cards/([^"]+)"\)', text)) <= {name}
