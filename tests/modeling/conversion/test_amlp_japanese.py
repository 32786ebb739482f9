"""The block of aMLP-japanese, written out on their tensors, is what converted models are compared with.

With a checkout of github.com/tanreinama/aMLP-japanese named by TOKENMIXERS_AMLP_JAPANESE, they are compared with its
PyTorch model as well.
"""

import os
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tokenmixers import AMLPConfig, AMLPForMaskedLM, AMLPForQuestionAnswering, AMLPForSequenceClassification
from tokenmixers.modeling.conversion.amlp_japanese import amlp_from_japanese, convert_amlp_japanese_state_dict


#: As in "base" and "large", the second is wider, deeper and has wider attention.
SIZES = {
    "base": {"num_ctx": 13, "num_vocab": 31, "num_hidden": 10, "num_soft_att": 4, "num_layer": 2},
    "large": {"num_ctx": 9, "num_vocab": 29, "num_hidden": 14, "num_soft_att": 6, "num_layer": 4},
}
#: Outputs of a head.
HEADS = {None: 0, "squad_output": 2, "output": 3}
CLASSES = {
    None: AMLPForMaskedLM,
    "squad_output": AMLPForQuestionAnswering,
    "output": AMLPForSequenceClassification,
}


def expected_shapes(num_ctx, num_vocab, num_hidden, num_soft_att, num_layer, head=None):
    """Names and shapes of all tensors of a model of theirs."""

    def affine(name, inputs, outputs):
        return {f"{name}.w": (inputs, outputs), f"{name}.b": (outputs,)}

    def norm(name, width):
        return {f"{name}.g": (width,), f"{name}.b": (width,)}

    shapes = {"vocabrary_embed": (num_vocab,), "embed.w": (num_vocab, num_hidden)}
    for layer in range(num_layer):
        block, attention = f"layer.{layer}.b", f"layer.{layer}.s"
        shapes |= {f"{block}.sgu_w": (1, num_ctx, num_ctx), f"{block}.sgu_b": (num_ctx,)}
        shapes |= norm(f"{block}.norm", num_hidden) | norm(f"{block}.sgu_norm", num_ctx)
        shapes |= affine(f"{block}.proj", num_hidden, 2 * num_ctx) | affine(f"{block}.proj_c", num_ctx, num_hidden)
        shapes |= affine(f"{attention}.c", num_hidden, 3 * num_soft_att)
        shapes |= affine(f"{attention}.p", num_soft_att, num_ctx)
    shapes |= affine("last_proj", num_hidden, num_hidden)
    return shapes | (affine(head, num_hidden, HEADS[head]) if head else {})


def random_tensors(shapes, seed=0):
    """Every tensor random, and none near what training starts with."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        scale = shape[-2] ** -0.5 if len(shape) > 1 else 0.5
        tensors[name] = scale * torch.randn(shape, generator=generator) + float(name.endswith(".g"))
    return tensors


def reference(tensors, ids, head=None):
    """Hidden states and scores of one sequence without padding."""

    def affine(x, name):
        return torch.einsum("td,de->te", x, tensors[f"{name}.w"]) + tensors[f"{name}.b"]

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.g"], tensors[f"{name}.b"], 1e-5)

    x, length = tensors["embed.w"][ids], len(ids)
    for layer in range(1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layer."))):
        block, attention = f"layer.{layer}.b", f"layer.{layer}.s"
        query, key, value = affine(x, f"{attention}.c").chunk(3, dim=-1)
        weights = (torch.einsum("qd,kd->qk", query, key) / query.shape[-1] ** 0.5).softmax(-1)
        attended = affine(torch.einsum("qk,kd->qd", weights, value), f"{attention}.p")
        u, v = F.silu(affine(norm(x, f"{block}.norm"), f"{block}.proj")).chunk(2, dim=-1)
        spatial = tensors[f"{block}.sgu_w"][0, :length, :length]  # from the row's token to the column's
        mixed = torch.einsum("kc,kt->tc", norm(v, f"{block}.sgu_norm"), spatial)
        gate = mixed + tensors[f"{block}.sgu_b"][:length, None] + attended
        x = x + F.silu(affine(u * gate, f"{block}.proj_c"))
    if head is None:
        return x, affine(x, "last_proj") @ tensors["embed.w"].T + tensors["vocabrary_embed"]
    return x, affine(x, head)


def outputs_of(model, ids, mask):
    """Hidden states and scores; for a sequence those of the first token."""
    outputs = model(ids, attention_mask=mask, output_hidden_states=True)
    if isinstance(model, AMLPForQuestionAnswering):
        return outputs.hidden_states[-1], torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    return outputs.hidden_states[-1], outputs.logits


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_padded_batches_have_the_outputs_of_the_formula(size, head, implementation):
    tensors = random_tensors(expected_shapes(**SIZES[size], head=head))
    model = amlp_from_japanese(tensors)
    assert type(model) is CLASSES[head] and not model.training
    model.set_attn_implementation(implementation)
    longest = SIZES[size]["num_ctx"]
    ids, mask = torch.randint(SIZES[size]["num_vocab"], (3, longest)), torch.ones(3, longest, dtype=torch.long)
    mask[1, 6:], mask[2, 1:] = 0, 0
    hidden, scores = outputs_of(model, ids, mask)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        expected_hidden, expected = reference(tensors, ids[row, :length], head)
        torch.testing.assert_close(hidden[row, :length], expected_hidden, rtol=1e-5, atol=2e-5)
        if head == "output":
            torch.testing.assert_close(scores[row], expected[0], rtol=1e-5, atol=2e-5)
        else:
            torch.testing.assert_close(scores[row, :length], expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.skipif("TOKENMIXERS_AMLP_JAPANESE" not in os.environ, reason="needs a checkout of aMLP-japanese")
@torch.no_grad()
def test_their_own_model(size, head):
    file = Path(os.environ["TOKENMIXERS_AMLP_JAPANESE"]) / "pytorch" / "modeling_pt.py"
    heads = {"classifier_n": 3 if head == "output" else -1, "is_squad": head == "squad_output"}
    theirs = runpy.run_path(str(file))["model"](**SIZES[size], has_voc=True, **heads).eval()
    tensors = random_tensors({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected_shapes(**SIZES[size], head=head)
    theirs.load_state_dict(tensors)
    longest = SIZES[size]["num_ctx"]
    ids, mask = torch.randint(SIZES[size]["num_vocab"], (4, longest)), torch.ones(4, longest, dtype=torch.long)
    mask[1, 7:], mask[2, 1:], mask[3, 2:5] = 0, 0, 0  # padding between tokens too
    hidden, scores = outputs_of(amlp_from_japanese(tensors), ids, mask)
    expected_hidden, *expected = theirs(ids, mask.float())
    torch.testing.assert_close(hidden[mask == 1], expected_hidden[mask == 1], rtol=1e-5, atol=2e-5)
    if head == "output":
        torch.testing.assert_close(scores, expected[1], rtol=1e-5, atol=2e-5)
    else:
        torch.testing.assert_close(scores[mask == 1], expected[-1][mask == 1], rtol=1e-5, atol=2e-5)


def test_published_numbers_of_parameters():
    """As on their page, where the models have 24,000 tokens; 640 tokens in a text follow from the numbers."""
    base = {"num_ctx": 640, "num_vocab": 24000, "num_hidden": 512, "num_soft_att": 64, "num_layer": 36}
    large = {**base, "num_hidden": 768, "num_soft_att": 128, "num_layer": 72}
    for sizes, count, with_head in ((base, 67_923_648, 67_924_674), (large, 182_308_032, 182_309_570)):
        with torch.device("meta"):
            tensors = {name: torch.empty(shape) for name, shape in expected_shapes(**sizes).items()}
            tensors["vocabrary_embed"] = torch.empty(24000)
            head = {name: torch.empty(shape) for name, shape in expected_shapes(**sizes, head="squad_output").items()}
        assert amlp_from_japanese(tensors).num_parameters() == count
        only_language_model = 24000 + sizes["num_hidden"] ** 2 + sizes["num_hidden"]
        assert amlp_from_japanese(head).num_parameters() == with_head - only_language_model


def test_names_of_tensorflow_and_a_missing_vocabulary_bias():
    tensors = random_tensors(expected_shapes(**SIZES["base"]))
    named = {name.replace(".", "_"): tensor for name, tensor in tensors.items()}
    expected = convert_amlp_japanese_state_dict(tensors)
    converted = convert_amlp_japanese_state_dict(named)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], expected[name]) for name in expected)
    del named["vocabrary_embed"]
    assert not amlp_from_japanese(named).lm_head.bias.any()


def test_configuration():
    config = amlp_from_japanese(random_tensors(expected_shapes(**SIZES["base"])), dropout=0.1).config
    assert isinstance(config, AMLPConfig) and config.hidden_dropout_prob == 0.1
    assert config.spatial_weight_type == "full" and config.mask_padding and config.tie_word_embeddings
    assert (config.max_position_embeddings, config.intermediate_size) == (13, 26)
    assert (config.pad_token_id, config.eos_token_id) == (28, 30)


def without(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.update({"layer_0_att_q.w": torch.ones(3, 3)}),
            "'layer_0_att_q.w' is not a tensor of an",
        ),
        (lambda tensors: tensors.update({"extra": torch.ones(1)}), "'extra' is not a tensor of an aMLP"),
        (
            lambda tensors: tensors.update({"layer.1.b.proj.w": torch.ones(10, 26, dtype=torch.int64)}),
            r"'layer.1.b.proj.w' is a tensor of torch.int64 \(torch.strided\): weights are dense floating-point",
        ),
        (
            lambda tensors: tensors.update({"embed.w": tensors["embed.w"].to_sparse()}),
            "'embed.w' is a tensor of torch.float32 .torch.sparse_coo.: weights are dense",
        ),
        (without("embed.w"), "The embeddings, 'embed.w', are missing"),
        (without("layer.0.s.c.w"), "The first block has no matrix for `attention.qkv_proj`"),
        (without("layer.1.b.proj_c.b"), r"no tensor for `model.layers.1.proj_out.bias`: the aMLP-japanese model is"),
        (
            lambda tensors: tensors.update({"output.b": torch.ones(3)}),
            "`classifier.bias` is not a weight of the model",
        ),
        (without("last_proj.w"), "There is no tensor for `lm_projection.weight`"),
        (lambda tensors: tensors.update({"layer.7.b.sgu_b": torch.ones(13)}), "3 blocks, the last .* number 7"),
        (
            lambda tensors: tensors.update({"layer.1.b.proj.w": torch.ones(10, 25)}),
            r"`model.layers.1.proj_in.weight` has shape \(25, 10\), where those of the others need \(26, 10\)",
        ),
    ],
)
def test_other_tensors(change, message):
    tensors = random_tensors(expected_shapes(**SIZES["base"]))
    change(tensors)
    with pytest.raises(ValueError, match=message):
        amlp_from_japanese(tensors)
