"""BERT against Transformers' own; the other token mixers against their formulas."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from tokenmixers import HybridBertConfig, HybridBertForMaskedLM, HybridBertModel
from tokenmixers.configuration.configuration_hybrid_bert import TokenMixer
from tokenmixers.modeling.conversion.bert import hybrid_from_bert
from tokenmixers.modeling.inputs.token_layout import TokenLayout


TYPES = get_args(TokenMixer)
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="session")
def build(tiny_config, randomise):
    def model(model_class=HybridBertModel, **changes):
        return randomise(model_class(tiny_config(HybridBertConfig, **changes))).double().eval()

    return model


@pytest.fixture
def bert(randomise):
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 14, "num_hidden_layers": 3}
    config = BertConfig(vocab_size=37, max_position_embeddings=11, **sizes, **WITHOUT_DROPOUT)
    return randomise(BertModel(config, add_pooling_layer=False)).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_full_attention_alone_is_bert(bert, implementation):
    ids, types = torch.randint(37, (4, 11)), torch.randint(2, (4, 11))
    mask = torch.arange(11) < torch.tensor([11, 4, 1, 7])[:, None]
    bert.set_attn_implementation(implementation)
    model = hybrid_from_bert(bert)
    model.set_attn_implementation(implementation)
    for inputs in (
        {"input_ids": ids},
        {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types},
        {"input_ids": ids, "position_ids": torch.arange(11).flip(0)[None]},
    ):
        asked = {"output_hidden_states": True, "output_attentions": implementation == "eager"}
        found, expected = model(**inputs, **asked), bert(**inputs, **asked)
        if implementation == "sdpa":
            assert all(map(torch.equal, found.hidden_states, expected.hidden_states))
        else:  # which scales queries before the product, ours, or logits after it
            torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
            torch.testing.assert_close(found.attentions, expected.attentions)
    weights = torch.randn_like(expected.last_hidden_state)
    for result in (found, expected):
        (result.last_hidden_state * weights).sum().backward()
    pairs = {
        "embed_tokens": "embeddings.word_embeddings",
        "layers.0.self_attn.k_proj": "encoder.layer.0.attention.self.key",
    }
    for ours, theirs in pairs.items():
        torch.testing.assert_close(model.get_submodule(ours).weight.grad, bert.get_submodule(theirs).weight.grad)


def aft_weights(mixer, states: torch.Tensor, head: int, query: int) -> torch.Tensor:
    """Equation 2 of arXiv 2105.14103 with a score per head, mixed over its mean queries."""
    count, total = mixer.num_mean_queries, 0.0
    own = slice(head * count, (head + 1) * count)
    shares = torch.ones(1, dtype=states.dtype)
    if count > 1:
        shares = (mixer.share_proj.weight[own] @ states[query] + mixer.share_proj.bias[own]).softmax(0)
    for share, score in zip(shares, mixer.score_proj.weight[own], strict=True):
        keys = range(len(states))
        w = [mixer.logits.first[head] if j == 0 else mixer.logits.weight[10 + j - query, head] for j in keys]
        terms = torch.stack([torch.exp(w[j] + score @ states[j]) for j in keys])
        total = total + share * terms / terms.sum()
    return total


def synthesizer_weights(layer, states: torch.Tensor, head: int, query: int) -> torch.Tensor:
    """The weights of a row's tokens, one number at a time."""
    mixer, n, token_mixer = layer.self_attn, 11, layer.self_attn.config.token_mixers[0]
    logits, numbers = mixer.logits, []
    if token_mixer == "aft":
        return aft_weights(mixer, states, head, query)
    for key in range(len(states)):
        if token_mixer == "random_synthesizer":
            numbers.append(logits.first[head] if key == 0 else logits.weight[n - 1 + key - query, head])
        else:
            first = F.relu(logits.first.first_proj(states[query]))[head * mixer.head_dim : (head + 1) * mixer.head_dim]
            numbers.append(logits.second.weight[head, key] @ first + logits.second.bias[head, key])
    return torch.stack(numbers).softmax(0)


def synthesizer_layer(layer, states: torch.Tensor) -> torch.Tensor:
    """A layer of BERT with a Synthesizer for one unpadded sequence."""
    mixer = layer.self_attn
    values = mixer.v_proj(states).unflatten(1, (-1, mixer.head_dim))
    mixed = torch.stack(
        [
            torch.cat([synthesizer_weights(layer, states, head, query) @ values[:, head] for head in range(2)])
            for query in range(len(states))
        ]
    )
    if getattr(mixer, "gate_proj", None) is not None:
        mixed = mixed * (2 * mixer.gate_proj(states).sigmoid()).repeat_interleave(mixer.head_dim, dim=1)
    norm = lambda x, module: F.layer_norm(x, x.shape[-1:], module.weight, module.bias, 1e-12)  # noqa: E731
    states = norm(states + mixer.o_proj(mixed), layer.self_attn_norm)
    return norm(states + layer.proj_out(F.gelu(layer.proj_in(states))), layer.mlp_norm)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("token_mixer", "fields"),
    [
        ("random_synthesizer", {}),
        ("dense_synthesizer", {}),
        ("aft", {}),
        ("aft", {"num_mean_queries": 3, "aft_gate": True}),
    ],
)
@given(data=st.data())
def test_a_mixer_equals_its_formula_with_padding_on_either_side(
    token_mixer, fields, implementation, data, build, pad, padded_layouts
):
    model = build(token_mixers=[token_mixer], **fields)
    model.set_attn_implementation(implementation)
    lengths, padded, offsets = data.draw(padded_layouts())
    rows = [torch.randint(37, (length,)) for length in lengths]
    ids, mask = pad(rows, padded, offsets)
    asked = {"output_hidden_states": True, "output_attentions": implementation == "eager"}
    found = model(ids, attention_mask=mask, **asked)
    for row, (length, offset) in enumerate(zip(lengths, offsets, strict=True)):
        own = slice(offset, offset + length)
        embedded = found.hidden_states[0][row, own]
        torch.testing.assert_close(found.last_hidden_state[row, own], synthesizer_layer(model.layers[0], embedded))
        if implementation == "eager":
            expected = synthesizer_weights(model.layers[0], embedded, 1, 0)
            torch.testing.assert_close(found.attentions[0][row, 1, offset, own], expected)


@pytest.mark.parametrize("token_mixer", ["gmlp", "amlp"])
def test_blocks_of_gmlp_and_amlp_follow_and_a_norm_only_if_last(token_mixer, build):
    model = build(token_mixers=["full_attention", token_mixer])
    ids = torch.randint(37, (2, 7))
    states = model(ids, output_hidden_states=True).hidden_states
    block = model.layers[1](states[1], TokenLayout(7, 7))
    expected = F.layer_norm(block, (10,), model.norm.weight, model.norm.bias, 1e-12)
    torch.testing.assert_close(states[2], expected)
    assert type(model.layers[1]).__name__ == f"{token_mixer[0].upper()}MLPLayer"
    assert isinstance(build(token_mixers=[token_mixer, "full_attention"]).norm, torch.nn.Identity)


@pytest.mark.parametrize("token_mixer", TYPES)
def test_given_positions_are_those_of_a_longer_text(token_mixer, build):
    """Tokens at given places see each other as in a text whose other tokens are padding."""
    model = build(token_mixers=[token_mixer])
    ids, places = torch.randint(37, (2, 11)), torch.tensor([[0, 2, 3, 7], [0, 1, 8, 9]])
    mask = torch.zeros(2, 11).scatter(1, places, 1.0)
    found = model(ids.gather(1, places), position_ids=places).last_hidden_state
    expected = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected.gather(1, places[..., None].expand(-1, -1, 10)))


@pytest.mark.parametrize("length", [5, 30])
@pytest.mark.parametrize("token_mixer", TYPES)
def test_another_length_keeps_what_was_learned(token_mixer, build, length):
    model = build(HybridBertForMaskedLM, token_mixers=[token_mixer])
    ids = torch.randint(1, 37, (2, 5))
    before = model(ids).logits
    model.resize_position_embeddings(length)
    torch.testing.assert_close(model(ids).logits, before)
    assert model.config.max_position_embeddings == model.model.embed_positions.num_embeddings == length
    assert model(torch.randint(1, 37, (1, length))).logits.shape == (1, length, 37)
    with pytest.raises(ValueError, match=f"has {length + 1} tokens"):
        model(torch.ones(1, length + 1, dtype=torch.long))
    if token_mixer == "random_synthesizer" and length > 11:
        logits = model.model.layers[0].self_attn.logits.weight
        assert (logits[: 30 - 10] == logits[30 - 11]).all() and (logits[29 + 10 :] == logits[29 + 10]).all()


def test_full_spatial_weights_compute_the_same(build):
    model = build(token_mixers=["gmlp", "random_synthesizer", "amlp"])
    ids, mask = torch.randint(37, (2, 7)), torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    before = model(ids, mask).last_hidden_state[mask.bool()]
    model.to_full_spatial_weights()
    assert model.config.spatial_weight_type == "full"
    torch.testing.assert_close(model(ids, mask).last_hidden_state[mask.bool()], before)


@pytest.mark.parametrize("asked", [{}, {"output_hidden_states": True}], ids=["last states", "all states"])
def test_an_exported_graph_moves_left_padding(asked, build):
    model = build(token_mixers=["aft", "full_attention", "random_synthesizer"], num_hidden_layers=3)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    inputs = {"input_ids": torch.randint(1, 37, (3, 5)), "attention_mask": mask, "token_type_ids": mask.roll(1, 1)}
    graph = torch.export.export(model, (), inputs | asked).module()
    found, expected = graph(**inputs, **asked), model(**inputs, **asked)
    for ours, theirs in zip(found.values(), expected.values(), strict=True):
        states = [(ours, theirs)] if isinstance(ours, torch.Tensor) else zip(ours, theirs, strict=True)
        for one, other in states:
            torch.testing.assert_close(one[mask == 1], other[mask == 1])
