import pytest
import torch

from tokenmixers import AMLPConfig, AMLPForMaskedLM, AMLPModel


SMALL = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "attention_size": 4}


def small_config(**kwargs):
    return AMLPConfig(**{"max_position_embeddings": 9, **SMALL, **kwargs})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_blocks_equal_the_papers_formula(implementation, randomise, gmlp_states):
    config = small_config()
    config._attn_implementation = implementation
    model = randomise(AMLPModel(config)).eval()
    ids = torch.tensor([[1, 5, 2, 9, 4, 4, 12]])
    expected = gmlp_states(model, model.embed_tokens(ids)[0])[-1]
    torch.testing.assert_close(model(ids).last_hidden_state[0], expected, atol=1e-4, rtol=1e-4)


def test_parameter_counts_are_the_papers():
    large = AMLPConfig(num_hidden_layers=72, hidden_size=768, attention_size=128)
    for config, count in ((AMLPConfig(), 108_791_516), (large, 315_627_960)):
        with torch.device("meta"):
            model = AMLPForMaskedLM(config)
        assert model.num_parameters() - model.lm_head.bias.numel() == count


def test_attentions_are_returned_and_ignore_padding(randomise):
    model = randomise(AMLPModel(small_config())).eval()
    model.set_attn_implementation("eager")
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]])
    outputs = model(torch.randint(0, 13, (2, 5)), mask, output_attentions=True, output_hidden_states=True)
    assert len(outputs.attentions) == 2
    assert len(outputs.hidden_states) == 3
    for weights in outputs.attentions:
        assert weights.shape == (2, 1, 5, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 5))
        assert weights[mask[:, None, None].expand_as(weights) == 0].abs().max() == 0


@pytest.mark.parametrize("gate_type", ["split", "linear", "additive", "multiplicative"])
def test_tiny_attention_joins_every_gate(gate_type, randomise):
    model = randomise(AMLPModel(small_config(gate_type=gate_type))).eval()
    layer = model.layers[0]
    hidden_states = torch.randn(2, 5, 8)
    attention, _ = layer.attention(*layer.attention.project(layer.norm(hidden_states)))
    z = layer.activation(layer.proj_in(layer.norm(hidden_states)))
    passed, mixed = z.chunk(2, -1) if gate_type == "split" else (z, z)
    gate = layer.sgu.spatial_proj(layer.sgu.norm(mixed)) + attention
    gated = {"linear": gate, "additive": passed + gate}.get(gate_type, passed * gate)
    torch.testing.assert_close(layer(hidden_states), hidden_states + layer.proj_out(gated))
