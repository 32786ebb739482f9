import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from tokenmixers import SynthesizerConfig, SynthesizerForMaskedLM
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks.serving_formats import perplexity_of, round_to_int8, token_mixing_weights


def test_perplexity_by_hand():
    logits = torch.randn(1, 4, 5)
    labels = torch.tensor([[1, -100, 3, -100]])
    row = {"input_ids": torch.zeros(1, 4), "attention_mask": torch.ones(1, 4), "labels": labels}
    loss = -(logits.log_softmax(-1)[0, 0, 1] + logits.log_softmax(-1)[0, 2, 3]) / 2
    assert perplexity_of(lambda inputs: logits, [row]) == pytest.approx(loss.exp().item(), rel=1e-5)


def test_rounding_to_int8():
    weights = torch.randn(3, 50)
    rounded = weights.clone()
    round_to_int8(rounded)
    steps = weights.abs().amax(-1, keepdim=True) / 127
    assert ((rounded - weights).abs() <= 0.5001 * steps).all()
    assert all(len(row.unique()) <= 255 for row in (rounded / steps).round())
    round_to_int8(torch.zeros(2, 2))  # nothing to divide by


@pytest.mark.parametrize("component", ["random", "factorized_random", "fixed_random", "dense"])
def test_the_token_mixing_weights_of_a_synthesizer(component, tiny_config):
    sizes = {"num_attention_heads": 2, "head_dim": 4, "attention_components": [component]}
    model = SynthesizerForMaskedLM(tiny_config(SynthesizerConfig, **sizes))
    found = token_mixing_weights(model)
    assert len(found) >= model.config.num_hidden_layers
    assert any(11 in tensor.shape for tensor in found)  # the maximum length
    assert not {id(tensor) for tensor in found} & {id(m.weight) for m in model.modules() if type(m) is torch.nn.Linear}


def test_a_model_without_token_mixing_weights():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(UserError, match="BertForMaskedLM mixes tokens by linear layers alone"):
        token_mixing_weights(BertForMaskedLM(BertConfig(**sizes, vocab_size=50)))
