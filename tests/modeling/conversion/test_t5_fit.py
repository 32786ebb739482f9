import math

import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from tokenmixers import SynthesizerForConditionalGeneration
from tokenmixers.modeling.conversion.mean_attention import MeanAttention, extrapolate
from tokenmixers.modeling.conversion.t5_fit import FITTED_COMPONENTS, fit_synthesizer


VOCABULARY = 50


def t5(seed=0, bias_alone=False, **kwargs):
    """A T5 with random weights, and with `bias_alone` with queries of zero."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_kv": 6,
        "d_ff": 24,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
        "eos_token_id": None,
    }
    model = T5ForConditionalGeneration(T5Config(**{**config, **kwargs}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.uniform_(0.5, 1.5) if "norm" in name else weight.normal_(std=0.5)
        for block in (*model.encoder.block, *model.decoder.block):
            block.layer[0].SelfAttention.q.weight *= 0.0 if bias_alone else 2.0
    return model.eval()


def rows(lengths, target_lengths, seed=1, padding=0):
    """A batch, padded on the right by tokens `padding`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    labels = torch.randint(3, VOCABULARY, (len(lengths), max(target_lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    target_mask = torch.arange(max(target_lengths)) < torch.tensor(target_lengths)[:, None]
    return {
        "input_ids": ids.where(mask, padding),
        "attention_mask": mask.long(),
        "labels": labels.where(target_mask, -100),
    }


def maps(model, side):
    """The self-attention logits of each layer without the position bias, `(heads, N, N)`."""
    result = []
    for layer in getattr(model.model, side).layers:
        (component,) = layer.self_attn.components.values()
        if hasattr(component, "weight"):
            result.append(component.weight)
        else:
            result.append(component.query_factor @ component.key_factor.mT)
    return result


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


# --- random ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", FITTED_COMPONENTS)
def test_a_t5_with_the_position_bias_alone_is_reproduced(component):
    original = t5(bias_alone=True)
    model = fit_synthesizer(original, [rows([13, 5, 9], [7, 2, 7])], component, max_position_embeddings=20, epochs=1)
    batch = rows([20, 3], [18, 20], seed=2)  # longer than the calibration rows
    expected = logits(original, batch)
    assert expected.std() > 0.3
    dense = "dense" in component  # Adam takes steps, if small ones, when there is nothing to gain
    torch.testing.assert_close(logits(model, batch), expected, rtol=0.0, atol=2e-2 if dense else 1e-5)


def test_mean_attention_is_that_of_transformers():
    original = t5()
    batches = [rows([11, 11, 11], [6, 6, 6], seed) for seed in (1, 2)]
    model = fit_synthesizer(original, batches, "random", max_position_embeddings=11)
    for model_or_stack in (original, original.encoder, original.decoder):  # 5.17 does not reach the stacks
        model_or_stack.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = [original(**batch, output_attentions=True) for batch in batches]
    attentions = {side: [output[f"{side}_attentions"] for output in outputs] for side in ("encoder", "decoder")}
    for side, layers in attentions.items():
        stack = getattr(original, side)
        bias = stack.block[0].layer[0].SelfAttention.compute_bias(11, 11)[0]
        for layer, actual in enumerate(maps(model, side)):
            samples = torch.cat([batch[layer] for batch in layers])
            expected = torch.einsum("nhij->hij", samples) / len(samples)
            length = expected.shape[-1]
            total = (actual + bias)[:, :length, :length]
            if side == "decoder":
                total = total.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
            torch.testing.assert_close(total.softmax(-1), expected, rtol=1e-4, atol=1e-5)
            assert actual.detach().std() > 0.1


def test_padding_is_ignored():
    original = t5()
    batch = rows([12, 7, 4], [6, 3, 5])
    filled = rows([12, 7, 4], [6, 3, 5], padding=17)
    wide = {
        name: torch.nn.functional.pad(tensor, (0, 3), value=-100 if name == "labels" else 0)
        for name, tensor in batch.items()
    }
    lengths = zip([12, 7, 4], [6, 3, 5], strict=True)
    single = [
        {name: tensor[row : row + 1, : target if name == "labels" else length] for name, tensor in batch.items()}
        for row, (length, target) in enumerate(lengths)
    ]
    expected = fit_synthesizer(original, [batch], "random", max_position_embeddings=16)
    for batches in ([filled], [wide], single, single[::-1]):
        other = fit_synthesizer(original, batches, "random", max_position_embeddings=16)
        for side in ("encoder", "decoder"):
            for one, two in zip(maps(expected, side), maps(other, side), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_short_rows_say_nothing_about_later_keys():
    truth = torch.tensor([0.5, 0.1, 0.3, 0.1])
    mean = MeanAttention(1, 4, torch.device("cpu"))
    for length in (2, 4, 3):
        weights = torch.zeros(1, 1, 4, 4)
        weights[..., :length] = truth[:length] / truth[:length].sum()
        visible = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
        visible[..., :length, :length] = True
        mean.add(weights, visible)
    torch.testing.assert_close(mean.log_weights().exp()[0, :2], truth.expand(2, 4))
    assert mean.seen.tolist() == [[True] * 4, [True] * 4, [True] * 4, [True] * 4]


def test_unseen_pairs_follow_from_the_distance():
    generator = torch.Generator().manual_seed(0)
    index = torch.arange(6)
    buckets = (index - index[:, None]).clamp(-2, 2).abs() + 3 * (index > index[:, None])  # 0, 1, 2; none is 3; 4, 5
    by_bucket = torch.randn(2, 6, generator=generator)
    by_bucket[:, 3] = 0.0
    constants = torch.randn(2, 6, 1, generator=generator)
    truth = by_bucket[:, buckets] + constants
    seen = (index < 4) & (index[:, None] < 4)
    weights = torch.rand(2, 6, 6, generator=generator) + 0.1
    filled = extrapolate(truth.where(seen, math.nan), weights, seen, buckets, 6, 3)
    torch.testing.assert_close(filled.softmax(-1), by_bucket[:, buckets].softmax(-1), rtol=1e-4, atol=1e-5)
    only_near = (index - index[:, None]).abs() < 2
    filled = extrapolate(truth.where(only_near, math.nan), weights, only_near, buckets, 6, 3)
    far = buckets == 5
    torch.testing.assert_close(filled[:, far], filled[:, 0, 1][:, None].expand(-1, int(far.sum())), atol=1e-4, rtol=0)


def test_factorized_random_is_near_random_with_enough_rank():
    original = t5(num_layers=1, num_decoder_layers=1)
    batches = [rows([10, 10], [6, 6], seed) for seed in range(3)]
    wanted = fit_synthesizer(original, batches, "random", max_position_embeddings=10)
    distances = []
    for rank in (1, 10):
        model = fit_synthesizer(
            original, batches, "factorized_random", max_position_embeddings=10, factorized_random_rank=rank
        )
        distances.append((logits(model, batches[0]) - logits(wanted, batches[0])).square().mean().sqrt())
    assert distances[1] < 0.05 * logits(wanted, batches[0]).std() < distances[0]


# --- dense -------------------------------------------------------------------------------------------------------


def query_token_decides(length=8, kinds=4):
    """A T5 encoder whose keys tell their position alone, so that a query's logits depend on its token alone.

    Token `position * kinds + kind` stands only at `position`. Half of the embedding is the position's, which keys
    read, and half is the token's, which queries read; all embeddings have the same length.
    """
    torch.manual_seed(0)
    options = {"vocab_size": length * kinds, "num_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_kv": 8}
    model = t5(bias_alone=True, **options)
    code = torch.nn.functional.normalize(torch.randn(length, 16), dim=-1).repeat_interleave(kinds, 0)
    token = torch.nn.functional.normalize(torch.randn(length * kinds, 16), dim=-1)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        model.shared.weight.copy_(torch.cat([code, token], dim=1) * 16**0.5)
        model.encoder.block[0].layer[0].layer_norm.weight.fill_(1.0)
        attention.q.weight.normal_(std=0.4)[:, :16] = 0.0
        attention.k.weight.normal_(std=0.4)[:, 16:] = 0.0
    kind = torch.randint(kinds, (11, 24, length))
    batches = [{"input_ids": torch.arange(length) * kinds + row, "labels": row} for row in kind]
    return model, batches


@pytest.mark.parametrize(
    ("component", "options"),
    [
        ("dense", {}),
        pytest.param("dense", {"dense_first_layer": "query"}, marks=pytest.mark.slow),
        pytest.param("factorized_dense", {"factorized_dense_factors": [8, 1]}, marks=pytest.mark.slow),
    ],
)
def test_attention_by_the_query_token_alone_is_learned(component, options):
    original, batches = query_token_decides()
    train, test = batches[:-1], batches[-1]
    sizes = {"max_position_embeddings": 8, "decoder_attention_components": ["vanilla"]}
    model = fit_synthesizer(original, train, component, epochs=10, **sizes, **options)
    static = fit_synthesizer(original, train, "random", **sizes)
    for part in (original, original.encoder, model, static):  # 5.17 does not reach the stacks
        part.set_attn_implementation("eager")
    with torch.no_grad():
        wanted, found, mean = (
            m(**test, output_attentions=True).encoder_attentions[0] for m in (original, model, static)
        )
    assert (found - wanted).abs().mean() < 0.2 * (mean - wanted).abs().mean()


# --- the rest of the model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", FITTED_COMPONENTS)
def test_all_but_queries_and_keys_stays(component):
    original = t5()
    original.generation_config.num_beams = 3
    original.generation_config.max_length = 20
    batches = [rows([9, 4], [5, 6])]
    model = fit_synthesizer(original, batches, component, max_position_embeddings=9, epochs=1)
    exact = SynthesizerForConditionalGeneration
    assert type(model) is exact and not model.training and model.generation_config.num_beams == 3
    weights, kept = original.state_dict(), 0
    for name, tensor in model.state_dict().items():
        assert "self_attn.q_proj" not in name and "self_attn.k_proj" not in name
        if "components" not in name:
            assert any(tensor.shape == other.shape and torch.equal(tensor, other) for other in weights.values()), name
            kept += 1
    assert kept > 30
    assert len(model.generate(input_ids=batches[0]["input_ids"], max_new_tokens=5, num_beams=1)) == 2


def test_one_side_alone():
    original = t5()
    batch = rows([9, 9], [5, 5])
    model = fit_synthesizer(
        original,
        [batch],
        "random",
        max_position_embeddings=9,
        attention_components=["vanilla"],
        decoder_attention_components=["random"],
    )
    with torch.no_grad():
        ours, theirs = (m(**batch) for m in (model, original))
    torch.testing.assert_close(ours.encoder_last_hidden_state, theirs.encoder_last_hidden_state, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours.logits, theirs.logits, atol=1e-2)


def test_types():
    original = t5().to(torch.bfloat16)
    batches = [rows([9, 4], [5, 6])]
    assert fit_synthesizer(original, batches, "random", max_position_embeddings=9).dtype == torch.bfloat16
    model = fit_synthesizer(original, batches, "dense", max_position_embeddings=9, dtype=torch.float64, epochs=1)
    assert model.dtype == torch.float64
    assert logits(model, batches[0]).isfinite().all()


@pytest.mark.parametrize(
    ("component", "options", "message"),
    [
        ("vanilla", {}, "'vanilla' cannot be fitted; these can: random, dense, factorized_random, factorized_dense"),
        ("random", {"attention_components": ["random", "vanilla"]}, "encoder is to have the components .*fitted only"),
        ("random", {"decoder_attention_components": ["dense"]}, "The decoder is to have the components \\['dense'\\]"),
        ("random", {"attention_components": ["vanilla"]}, "Neither the encoder nor the decoder has the component"),
        ("random", {"max_position_embeddings": 8}, "up to 9 tokens in the encoder, which has .*=8"),
        ("dense", {"decoder_max_position_embeddings": 5}, "up to 6 tokens in the decoder, which has .*=5"),
        ("random", {"d_model": 24}, "T5's weights cannot be overridden"),
    ],
)
def test_what_cannot_be_fitted(component, options, message):
    if "d_model" in options:
        options = {"hidden_size": 24}
    with pytest.raises(ValueError, match=message):
        fit_synthesizer(t5(), [rows([9, 4], [5, 6])], component, **options)


def test_wrong_batches_and_models():
    with pytest.raises(ValueError, match="no calibration batches"):
        fit_synthesizer(t5(), [], "random")
    left = rows([9, 4], [5, 6])
    left["attention_mask"] = left["attention_mask"].flip(1)
    with pytest.raises(ValueError, match="padded on the left"):
        fit_synthesizer(t5(), [left], "random")
    bert = BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8))
    with pytest.raises(ValueError, match="not the name of a T5 weight"):
        fit_synthesizer(bert, [left], "random")
