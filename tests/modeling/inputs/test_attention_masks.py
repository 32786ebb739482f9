"""Masks of four dimensions, `(batch, heads or 1, queries, keys)`: against BERT, padding, documents, and formulas."""

from typing import get_args

import pytest
import torch
from transformers import BertConfig, BertModel

from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.modeling.conversion.bert import hybrid_from_bert


MIXERS = [("HybridBertModel", {"token_mixers": [mixer]}) for mixer in get_args(TokenMixer)]
COMPONENTS = (["random"], ["dense"], ["random", "vanilla"])
MODELS = [
    *MIXERS,
    ("HybridBertModel", {"token_mixers": ["aft"], "num_mean_queries": 3, "aft_gate": True}),
    ("GMLPModel", {"spatial_weight_type": "toeplitz"}),
    ("GMLPModel", {"spatial_weight_type": "full"}),
    ("AMLPModel", {"attention_size": 6}),
    *(("SynthesizerModel", {"attention_components": names}) for names in COMPONENTS),
]


def additive(mask: torch.Tensor) -> torch.Tensor:
    """As Transformers makes it of a boolean one."""
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["boolean", "additive", "of each head"])
def test_full_attention_alone_is_bert(kind, implementation, randomise):
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 14, "num_hidden_layers": 2}
    bert = randomise(BertModel(BertConfig(vocab_size=37, **sizes), add_pooling_layer=False)).eval()
    model = hybrid_from_bert(bert)
    model.set_attn_implementation(implementation)
    ids, visible = torch.randint(37, (2, 9)), torch.rand(2, 3 if kind == "of each head" else 1, 9, 9) < 0.6
    visible |= torch.eye(9, dtype=torch.bool)
    mask = visible if kind == "boolean" else additive(visible) + torch.randn(visible.shape).clamp(max=0)
    torch.testing.assert_close(
        model(ids, attention_mask=mask).last_hidden_state, bert(ids, attention_mask=mask).last_hidden_state
    )


@pytest.mark.parametrize("make", [lambda mask: mask, additive], ids=["boolean", "additive"])
@pytest.mark.parametrize(("name", "changes"), MODELS)
def test_a_mask_of_padding_or_documents(name, changes, make, tiny_model):
    model = tiny_model(name, **changes)
    ids, mask = torch.randint(37, (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    found = model(ids, attention_mask=make(mask[:, None, None, :].expand(-1, 1, 9, -1))).last_hidden_state
    torch.testing.assert_close(found[mask], model(ids, attention_mask=mask.long()).last_hidden_state[mask])
    documents, positions = torch.tensor([[0] * 5 + [1] * 4]), torch.tensor([[*range(5), *range(4)]])
    pairs = documents[:, None, :, None] == documents[:, None, None, :]
    found = model(ids, attention_mask=make(pairs), position_ids=positions).last_hidden_state
    expected = model(ids, seq_idx=documents.expand(2, -1)).last_hidden_state
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["GMLPModel", "AMLPModel"])
def test_a_model_that_sees_padding_still_takes_a_mask_of_pairs(name, tiny_model):
    ids, mask = torch.randint(37, (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    found = tiny_model(name, mask_padding=False)(ids, attention_mask=mask[:, None, None].expand(-1, 1, 9, -1))
    expected = tiny_model(name)(ids, attention_mask=mask)
    torch.testing.assert_close(found.last_hidden_state[mask], expected.last_hidden_state[mask])


def test_what_is_added_to_a_logit_is_a_factor_of_a_spatial_weight(tiny_model, spatial_matrix):
    projection = tiny_model("GMLPModel").layers[0].sgu.spatial_proj
    factors, layouts = torch.rand(2, 1, 9, 9), []
    model = tiny_model("GMLPModel")
    hook = model.layers[0].register_forward_pre_hook(
        lambda _, arguments, options: layouts.append(options["layout"]), with_kwargs=True
    )
    model(torch.randint(37, (2, 9)), attention_mask=factors.log())
    hook.remove()
    expected = spatial_matrix(projection, [*range(9)]) * factors[:, 0]
    torch.testing.assert_close(projection.matrix(9, layouts[0]), expected)


def test_heads(tiny_model):
    ids, mask, padding = torch.randint(37, (2, 9)), torch.ones(2, 1, 9, 9, dtype=torch.bool), torch.ones(2, 9)
    by_mean = tiny_model("GMLPForSequenceClassification", classifier_pooling="mean")
    for name in ("GMLPForSequenceClassification", "HybridBertForQuestionAnswering", "AMLPForTokenClassification"):
        model = tiny_model(name)
        torch.testing.assert_close(model(ids, attention_mask=mask)[0], model(ids, attention_mask=padding)[0])
    with pytest.raises(ValueError, match="'mean' needs an `attention_mask` of shape"):
        by_mean(ids, attention_mask=mask)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("GMLPModel", {"attention_mask": torch.ones(2, 3, 9, 9)}, "no heads: .*2, 3, 9, 9"),
        ("AMLPModel", {"attention_mask": torch.ones(2, 1, 9, 9).long()}, "must be boolean .* got torch.int64"),
        ("HybridBertModel", {"attention_mask": torch.ones(3, 1, 9, 9)}, r"expected \(2 or 1, heads or 1, 9, 9\)"),
        ("HybridBertModel", {"attention_mask": torch.ones(2, 1, 9, 9), "seq_idx": torch.zeros(2, 9)}, "and not both"),
        ("MLPMixerModel", {"attention_mask": torch.ones(2, 1, 9, 9)}, "no weight for a pair"),
    ],
)
def test_mistakes(name, options, sentence, tiny_model):
    with pytest.raises(ValueError, match=sentence):
        tiny_model(name)(torch.randint(37, (2, 9)), **options)
