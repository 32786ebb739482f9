import json

import pytest
import torch
from transformers import BertConfig, BertModel

from tokenmixers import HybridBertConfig, HybridBertModel


def test_defaults_are_those_of_bert():
    config = HybridBertConfig()
    assert config.token_mixers == ["full_attention"] * 12
    theirs = BertConfig().to_dict()
    same = {name: value for name, value in config.to_dict().items() if name in theirs}
    assert len(same) > 20
    different = {name for name, value in same.items() if value != theirs[name]}
    assert different == {"model_type"}
    with torch.device("meta"):
        expected = BertModel(BertConfig(), add_pooling_layer=False).num_parameters()
        assert HybridBertModel(config).num_parameters() == expected


def test_the_number_of_layers_follows_from_their_types_and_is_saved(tmp_path):
    types = ["random_synthesizer", "gmlp", "full_attention"]
    config = HybridBertConfig(token_mixers=tuple(types))
    assert config.num_hidden_layers == 3
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["token_mixers"] == types
    assert HybridBertConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_types_changed_later_are_checked_by_the_model():
    config = HybridBertConfig(token_mixers=["gmlp"], hidden_size=12)
    config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="one name for each of `num_hidden_layers=2`, got 1: gmlp"):
        HybridBertModel(config)
