import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoModel

import tokenmixers


FOLDER = Path(tokenmixers.__file__).parent / "model_cards"
CARDS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def test_there_are_cards():
    assert {"gmlp-base", "gmlp-large", "gmlp-xlarge", "amlp-base", "amlp-large", "mlp-mixer-table3"} <= set(CARDS)


@pytest.mark.parametrize("name", [name for name in CARDS if name.startswith(("gmlp-", "amlp-", "mlp-mixer-"))])
def test_the_text_cards_are_true(name):
    config = AutoConfig.from_pretrained(FOLDER / name)
    text = (FOLDER / name / "README.md").read_text()
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    table = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE))
    assert table["parameters of the encoder"] == f"{model.num_parameters():,}"
    assert table["blocks"] == str(len(model.layers))
    assert table["`hidden_size` (d_model)"] == str(config.hidden_size)
    assert table["`intermediate_size` (d_ffn)"] == str(config.intermediate_size)
    assert table["maximum length"] == f"{config.max_position_embeddings} tokens"
    if config.model_type == "mlp_mixer":
        assert table["`token_mixing_size` (d_spatial)"] == str(config.token_mixing_size)
        fields, defaults = config.to_dict(), tokenmixers.MLPMixerConfig().to_dict()
        assert {name for name in fields if fields[name] != defaults[name]} == {"architectures", "_name_or_path"}
        return
    assert (
        table["spatial weights"] == f"Toeplitz, {model.layers[0].sgu.spatial_proj.weight.numel():,} numbers per block"
    )


@pytest.mark.parametrize("name", CARDS)
def test_metadata(name):
    card = ModelCard.load(FOLDER / name / "README.md")
    assert card.data.license
    assert card.data.library_name == "transformers"


@pytest.mark.parametrize("name", CARDS)
def test_the_snippet_names_the_card_itself(name):
    text = (FOLDER / name / "README.md").read_text()
    assert set(re.findall(r'from_pretrained\("model_cards/([^"]+)"\)', text)) <= {name}
