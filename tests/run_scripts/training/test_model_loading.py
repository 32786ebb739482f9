from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    GenerationConfig,
    PreTrainedTokenizerFast,
    SiglipConfig,
    T5Config,
)

from tokenmixers import GMLPConfig, SynthesizerConfig
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.training.generation import set_generation
from tokenmixers.run_scripts.training.model_loading import build_model, load_config, load_tokenizer, sequence_length
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


LIMITED = GMLPConfig(max_position_embeddings=48)
UNLIMITED = [
    T5Config(d_model=8, num_layers=1),
    SynthesizerConfig(attention_components=["vanilla"], position_embedding_type="none", max_position_embeddings=48),
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_unigram_tokenizer(["the gate mixes tokens"] * 4, 40, 32)


@pytest.mark.parametrize("config", UNLIMITED)
def test_a_model_without_a_limit_takes_longer_sequences_than_its_tokenizer_has_by_default(config, tokenizer):
    assert sequence_length(None, config, tokenizer) == 32
    assert sequence_length(100, config, tokenizer) == 100
    args = SimpleNamespace(generation_max_length=100, generation_num_beams=None, generation_config=None)
    model = SimpleNamespace(generation_config=GenerationConfig())
    set_generation(model, args, 12, config)
    assert model.generation_config.max_length == 100


def test_a_model_with_a_limit(tokenizer):
    assert sequence_length(None, LIMITED, tokenizer) == 32
    assert sequence_length(48, LIMITED, tokenizer) == 48
    with pytest.raises(UserError, match=r"--max_seq_length 49 does not fit the model, .* at most 48 tokens"):
        sequence_length(49, LIMITED, tokenizer)


def test_without_any_limit_a_length_must_be_given():
    endless = train_unigram_tokenizer(["the gate mixes tokens"] * 4, 40, None)
    assert sequence_length(None, LIMITED, endless) == 48
    with pytest.raises(UserError, match="neither the model nor the tokenizer has a maximum length: give --max"):
        sequence_length(None, UNLIMITED[0], endless)


@pytest.mark.parametrize(
    ("overrides", "types"),
    [
        ("num_hidden_layers=2", ["full_attention"] * 2),
        ("token_mixers=[gmlp,full_attention,amlp]", ["gmlp", "full_attention", "amlp"]),
    ],
)
def test_the_number_of_layers_or_their_types_give_the_other(overrides, types):
    config = load_config(ModelArguments(model_type="hybrid_bert", config_overrides=overrides))
    assert config.token_mixers == types and config.num_hidden_layers == len(types)


@pytest.mark.parametrize("number", [4, 5])
def test_a_new_tokenizer_reads_the_first_texts_alone(number, caplog, monkeypatch):
    monkeypatch.setattr("tokenmixers.run_scripts.training.model_loading.MOST_TEXTS", 4)
    arguments = ModelArguments(config_name="gmlp-base", train_tokenizer=40)
    texts = (*["the gate mixes tokens"] * 4, "zzz")[:number]
    tokenizer = load_tokenizer(arguments, 32, iter(texts), is_main_process=True)
    expected = train_unigram_tokenizer(texts[:4], 40, 32)
    assert tokenizer.get_vocab() == expected.get_vocab() and "z" not in tokenizer.get_vocab()
    warned = "the new tokenizer is trained on the first 4 texts alone" in caplog.text
    assert warned == (number == 5)


def test_a_name_like_one_of_the_shipped_configurations(monkeypatch):
    def without_network(*args, **kwargs):
        raise OSError("We couldn't connect to 'https://huggingface.co'.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", without_network)
    with pytest.raises(UserError, match=r"there is no 'gmlp-bse'. Did you mean 'gmlp-base' or .*, which this package"):
        load_config(ModelArguments(config_name="gmlp-bse"))
    with pytest.raises(UserError, match=r"'me/a-model': We couldn't connect to 'https://huggingface.co'\.$"):
        load_config(ModelArguments(config_name="me/a-model"))


def test_weights_are_float32_whatever_the_configuration_says(tmp_path):
    parts = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    nested = SiglipConfig(text_config=parts, vision_config={**parts, "image_size": 8, "patch_size": 4})
    gmlp = GMLPConfig(hidden_size=8, intermediate_size=16, num_hidden_layers=1, vocab_size=20)
    for config, auto_class in ((nested, AutoModelForImageClassification), (gmlp, AutoModel)):
        auto_class.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path / "start")
        for source in ("config_name", "model_name_or_path"):
            arguments = ModelArguments(**{source: str(tmp_path / "start")})
            config = load_config(arguments)
            assert config.dtype == torch.bfloat16
            model = build_model(arguments, config, auto_class)
            assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
            model.save_pretrained(tmp_path / "saved")
            assert "bfloat16" not in (tmp_path / "saved" / "config.json").read_text()
    with pytest.raises(UserError, match="names 'dtype': weights are float32; give --precision"):
        load_config(ModelArguments(config_name="gmlp-tiny", config_overrides="dtype=float16"))


def test_a_quantized_checkpoint_keeps_its_types():
    class Loader:
        @staticmethod
        def from_pretrained(name, dtype, **options):
            return SimpleNamespace(dtype=dtype), {"missing_keys": ()}

    for quantization, dtype in ((None, torch.float32), ({"quant_method": "spqr"}, "auto")):
        config = GMLPConfig() if quantization is None else GMLPConfig(quantization_config=quantization)
        assert build_model(ModelArguments("a"), config, Loader).dtype == dtype
