"""Tiny Synthesizers with random weights, and texts for them."""

import itertools

import pytest
import torch

from tokenmixers import SynthesizerConfig, SynthesizerForCausalLM, SynthesizerForConditionalGeneration


VOCABULARY = 40
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 19,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "is_encoder_decoder": False,
    "cross_attention_num_heads": None,
    "cross_attention_head_dim": None,
}
ALL_COMPONENTS = [
    ["random"],
    ["fixed_random"],
    ["factorized_random"],
    ["mesh_factorized"],
    ["relative"],
    ["dense"],
    ["factorized_dense"],
    ["random", "dense"],
    ["vanilla"],
    ["random", "vanilla"],
    ["dense", "vanilla"],
]


def _randomise(model, seed):
    """All weights, norms included: fresh ones hide transposes and missing scales."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif "shared" in name or "embed" in name:
                tensor.normal_()
            else:
                tensor.normal_(std=0.7 if tensor.dim() < 2 or "components" in name else tensor.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture(scope="session")
def all_components():
    return ALL_COMPONENTS


@pytest.fixture(params=ALL_COMPONENTS)
def components(request):
    return request.param


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def build():
    """`build(model_class, seed=0, implementation="sdpa", **changes)`: a model."""

    def build(model_class, seed=0, implementation="sdpa", **changes):
        torch.manual_seed(seed)
        config = SynthesizerConfig(**{**TINY, **changes})
        return _randomise(model_class._from_config(config, attn_implementation=implementation), seed)

    return build


@pytest.fixture(scope="session")
def causal_lm(build):
    """`causal_lm(components, **changes)`: a decoder. It is untied: a tied head tends to repeat the last token."""

    def decoder(components, **changes):
        changes = {"eos_token_id": None, "tie_word_embeddings": False, **changes}
        return build(SynthesizerForCausalLM, attention_components=components, is_decoder=True, **changes)

    return decoder


@pytest.fixture(scope="session")
def seq2seq(build):
    """`seq2seq(components, **changes)`: an encoder-decoder."""

    def encoder_decoder(components, **changes):
        changes = {"eos_token_id": None, "is_encoder_decoder": True, **changes}
        return build(SynthesizerForConditionalGeneration, attention_components=components, **changes)

    return encoder_decoder


@pytest.fixture(scope="session")
def tokens():
    """`tokens(*shape, seed=0)`: token ids without special ones."""
    return lambda *shape, seed=0: torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def pad():
    """`pad(rows, left)`: rows of ids as one batch, and its mask."""

    def pad(rows, left):
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            place = slice(ids.shape[1] - len(row), None) if left else slice(len(row))
            ids[index, place], mask[index, place] = row, 1
        return ids, mask

    return pad
