"""Every random number that a model draws in training: where the papers, and T5's code, drop something out."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


BATCH, LENGTH = 2, 5
HIDDEN, ATTENTION, CLASSIFIER, PATH = 0.25, 0.5, 0.375, 0.125  # rates, all different
# The shapes of what is dropped, with the rate: widths are those of `tiny_config`.
STATES, INNER, EXAMPLES = ((BATCH, LENGTH, 10), HIDDEN), ((BATCH, LENGTH, 14), HIDDEN), ((BATCH, 1, 1), PATH)
POOLED = ((BATCH, 10), CLASSIFIER)


class _Draws(TorchDispatchMode):
    """Records every draw for dropout, as shape and rate; `whole` is the index of one that drops everything."""

    def __init__(self, whole: int | None = None):
        super().__init__()
        self.found, self.whole = [], whole

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.ops.aten.bernoulli_.float:
            return function(*args, **kwargs)
        kept, keep_prob = (*args, kwargs.get("p", 0.5))[:2]  # 0.5 is the default, and left out
        self.found.append((tuple(kept.shape), 1 - keep_prob))
        return kept.zero_() if len(self.found) - 1 == self.whole else function(*args, **kwargs)


def _synthesizer_layers(count, attended, is_decoder=False):
    """T5's order: attention weights, output of the attention; hidden units, output of the feed-forward."""
    cross = [((BATCH, 2, LENGTH, LENGTH), ATTENTION), STATES] if is_decoder else []
    return [(attended, ATTENTION), STATES, *cross, INNER, STATES] * count


MAPS, KEYS = (BATCH, 2, LENGTH, LENGTH), (BATCH, 2, LENGTH, 1)
CASES = {
    "gmlp": ("GMLPModel", {}, [STATES, *[STATES, EXAMPLES] * 2]),
    "gmlp, classes": ("GMLPForSequenceClassification", {}, [STATES, *[STATES, EXAMPLES] * 2, POOLED]),
    "gmlp, tokens": (
        "GMLPForTokenClassification",
        {},
        [STATES, *[STATES, EXAMPLES] * 2, ((BATCH, LENGTH, 10), CLASSIFIER)],
    ),
    "gmlp, choices": ("GMLPForMultipleChoice", {}, [STATES, *[STATES, EXAMPLES] * 2, POOLED]),
    "gmlp, images": (
        "GMLPForImageClassification",
        {},
        [((BATCH, 5, 10), HIDDEN), *[((BATCH, 5, 10), HIDDEN), EXAMPLES] * 2, POOLED],
    ),
    "gmlp decoder": ("GMLPForCausalLM", {}, [STATES, *[STATES, EXAMPLES] * 2]),
    "amlp": ("AMLPModel", {}, [STATES, *[((BATCH, 1, LENGTH, LENGTH), ATTENTION), STATES, EXAMPLES] * 2]),
    "mlp-mixer": ("MLPMixerModel", {}, [STATES, *[STATES, EXAMPLES] * 4]),
    "synthesizer, vanilla": (
        "SynthesizerModel",
        {"attention_components": ["vanilla", "dense"]},
        [STATES, *_synthesizer_layers(2, MAPS), STATES],
    ),
    "synthesizer, dense": (
        "SynthesizerModel",
        {"attention_components": ["dense"]},
        [STATES, *_synthesizer_layers(2, MAPS), STATES],
    ),
    "synthesizer, shared": (
        "SynthesizerForTokenClassification",
        {"attention_components": ["random"]},
        [STATES, *_synthesizer_layers(2, KEYS), STATES, ((BATCH, LENGTH, 10), CLASSIFIER)],
    ),
    "hybrid bert": (
        "HybridBertModel",
        {"token_mixers": ["full_attention", "dense_synthesizer", "gmlp"]},
        [STATES, *[(MAPS, ATTENTION), STATES, STATES] * 2, STATES],
    ),
    "hybrid bert, shared": (
        "HybridBertForTokenClassification",
        {"token_mixers": ["random_synthesizer"]},
        [STATES, (KEYS, ATTENTION), STATES, STATES, ((BATCH, LENGTH, 10), CLASSIFIER)],
    ),
    "synthesizer encoder-decoder": (
        "SynthesizerForConditionalGeneration",
        {"attention_components": ["vanilla"]},
        [
            STATES,
            *_synthesizer_layers(2, MAPS),
            STATES,
            STATES,
            *_synthesizer_layers(2, MAPS, is_decoder=True),
            STATES,
        ],
    ),
}


@pytest.fixture(params=["eager", "sdpa"])
def build(request, tiny_model):
    def model(name, changes):
        rates = {"hidden_dropout_prob": HIDDEN, "classifier_dropout": CLASSIFIER}
        if name.startswith("Synthesizer"):
            rates["attention_dropout"] = ATTENTION
        elif not name.startswith("Hybrid"):
            rates["drop_path_rate"] = PATH
        if name.startswith(("AMLP", "Hybrid")):
            rates["attention_probs_dropout_prob"] = ATTENTION
        if request.param == "eager" and (["random"] in changes.values() or ["random_synthesizer"] in changes.values()):
            pytest.skip("`eager` computes the maps, and drops out their entries")
        built = tiny_model(name, **rates, **changes).train()
        if "GMLP" not in name and "Mixer" not in name:
            built.set_attn_implementation(request.param)
        return built

    return model


def run(model, whole=None):
    torch.manual_seed(0)
    ids = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH)
    inputs = {"input_ids": ids[:, None] if "MultipleChoice" in type(model).__name__ else ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    if model.config.image_size is not None:
        inputs = {"pixel_values": torch.randn(BATCH, 3, 8, 8)}
    with torch.no_grad(), _Draws(whole) as draws:
        return model(**inputs)[0], draws.found


@pytest.mark.parametrize("case", CASES)
def test_what_is_dropped(case, build):
    name, changes, expected = CASES[case]
    model = build(name, changes)
    outputs, found = run(model)
    assert found == expected
    for index in range(len(expected)):  # each of them has an effect
        assert not torch.equal(run(model, whole=index)[0], outputs), f"draw {index}"
    assert run(model.eval())[1] == []
