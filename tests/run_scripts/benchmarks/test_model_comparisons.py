import sys
from copy import deepcopy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tokenmixers import (
    AMLPConfig,
    AMLPForMaskedLM,
    AMLPModel,
    GMLPForMaskedLM,
    SynthesizerConfig,
    SynthesizerForConditionalGeneration,
)
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.benchmarks import model_comparisons
from tokenmixers.run_scripts.benchmarks.arguments import BenchmarkArguments
from tokenmixers.run_scripts.benchmarks.model_comparisons import (
    _decoding,
    as_g_mlp_pytorch,
    randomise_gates,
    text_against_g_mlp_pytorch,
    transformers_for,
)
from tokenmixers.run_scripts.benchmarks.timing import Case, check_agreement, model_candidate


CPU = torch.device("cpu")


INFERENCE = Case("inference", torch.float32, False, CPU)


TRAINING = Case("training", torch.float32, False, CPU)


SHRUNK = BenchmarkArguments("", presets=[], quick=True)


SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


def text_model(model_class):
    torch.manual_seed(0)
    config = model_class.config_class(**SIZES, max_position_embeddings=8, layer_norm_eps=1e-5)
    return randomise_gates(model_class(config))


def test_transformers_have_as_many_parameters():
    config = AMLPConfig(vocab_size=2000, num_hidden_layers=2, max_position_embeddings=64)
    model = AMLPModel(config)
    for peer in transformers_for(model, SHRUNK).values():
        assert peer.num_parameters() == pytest.approx(model.num_parameters(), rel=0.02)


def test_timm_is_imported_without_a_torchvision_that_fits(tmp_path, monkeypatch):
    """As its modules import it. A torchvision of another build raises a RuntimeError."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "timm.py").write_text(
        "import torchvision.transforms as transforms\n"
        "from torchvision.ops.misc import FrozenBatchNorm2d\n"
        "from torchvision.transforms.functional import InterpolationMode\n"
        "NAMES = {InterpolationMode.NEAREST: 'nearest'}\n"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert list(model_comparisons.import_peer("timm", 1).NAMES.values()) == ["nearest"]
        with pytest.raises(RuntimeError, match="nms"):  # nobody else gets the empty one
            import torchvision  # noqa: F401
    finally:
        sys.modules.pop("timm", None)


def test_packages_that_are_missing_are_told(monkeypatch):
    monkeypatch.setattr(model_comparisons, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--cells 1 needs timm, which is not installed: pip install --no-deps timm"):
        model_comparisons.import_peer("timm", 1)


@pytest.mark.parametrize("length", [5, 8])
@pytest.mark.parametrize("case", [INFERENCE, TRAINING], ids=["inference", "training"])
@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, AMLPForMaskedLM])
def test_g_mlp_pytorch_with_our_weights(model_class, case, length):
    pytest.importorskip("g_mlp_pytorch")
    ours = text_model(model_class)
    peer = as_g_mlp_pytorch(ours, length)
    ids, labels = torch.randint(1, 50, (2, length)), torch.arange(2 * length)
    candidates = [
        model_candidate("ours", ours, [{"input_ids": ids}], case, weights="same", labels=labels),
        model_candidate("theirs", peer, [{"x": ids}], case, weights="same", labels=labels),
    ]
    assert check_agreement(candidates, 1e-5)["theirs"] >= 0


def test_text_models_keep_their_kind_of_spatial_weights_at_every_length(monkeypatch):
    class Peer(torch.nn.Module):
        def __init__(self, model, length):
            super().__init__()
            self.model = deepcopy(model)

        def forward(self, x):
            return self.model(x)

    monkeypatch.setattr(model_comparisons, "as_g_mlp_pytorch", Peer)
    sizes = BenchmarkArguments("", quick=True)
    sizes.lengths = [8, 16]
    for group in text_against_g_mlp_pytorch(INFERENCE, sizes):
        toeplitz, full = (candidate.facts["parameters"] for candidate in group.candidates[:2])
        layers, longest = 2, 512
        assert full - toeplitz == layers * (longest**2 - (2 * longest - 1))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_decoding_compares_the_steps_that_the_target_has(compiled):
    torch.manual_seed(0)
    config = SynthesizerConfig(**SIZES, num_attention_heads=2, is_encoder_decoder=True, decoder_start_token_id=0)
    model = SynthesizerForConditionalGeneration(config).eval()
    source, target = torch.randint(3, 50, (2, 7)), torch.randint(3, 50, (2, 5))
    before = torch.cat([torch.zeros(2, 1, dtype=torch.long), target[:, :-1]], dim=1)
    with torch.no_grad():
        expected = model(source, decoder_input_ids=before).logits
    case = Case("inference", torch.float32, compiled, CPU)
    candidate = _decoding("ours", model, source, target, case, None)
    (found,) = candidate.outputs()
    torch.testing.assert_close(found.transpose(0, 1), expected, rtol=1e-4, atol=1e-4)
    if not compiled:
        model.set_attn_implementation("eager")
        encoded, cache = model.get_encoder()(source), None
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            for token in before.split(1, dim=1):
                step = model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache)
                cache = step.past_key_values
        assert candidate.floor.flops == counter.get_total_flops() > 0
