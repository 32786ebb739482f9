"""Compiled models, CUDA graphs and attention implementations on the GPU, against eager mode on the CPU."""

import copy
import re
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import StaticCache
from transformers.utils import is_flash_attn_2_available


# Every kind of token mixing, with heads of all kinds between them.
MODELS = {
    "gmlp, toeplitz": ("GMLPForMaskedLM", {}),
    "gmlp, full": ("GMLPForTokenClassification", {"spatial_weight_type": "full"}),
    "gmlp decoder": ("GMLPForCausalLM", {"use_cache": False}),
    "gmlp, images": ("GMLPForImageClassification", {}),
    "amlp": ("AMLPForSequenceClassification", {}),
    "mixer": ("MLPMixerForQuestionAnswering", {}),
    "synthesizer, random": ("SynthesizerForMaskedLM", {"attention_components": ["random"]}),
    "synthesizer, factorized_dense": ("SynthesizerForMaskedLM", {"attention_components": ["factorized_dense"]}),
    "synthesizer, mixture": ("SynthesizerForMaskedLM", {"attention_components": ["vanilla", "dense", "random"]}),
    "encoder-decoder": ("SynthesizerForConditionalGeneration", {"use_cache": False}),
    "hybrid": ("HybridBertForMaskedLM", {"token_mixers": ["random_synthesizer", "gmlp", "full_attention"]}),
}
FEW = ["gmlp, toeplitz", "amlp", "mixer", "synthesizer, random", "encoder-decoder"]
DECODERS = [name + "ForCausalLM" for name in ("GMLP", "AMLP", "Synthesizer")]
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture
def compiler(device):
    """Arguments of `torch.compile`: on a CPU whole graphs, which takes a tenth of the time of generated code."""
    return {"fullgraph": True, "backend": "inductor" if device.type == "cuda" else "aot_eager"}


@pytest.mark.parametrize("name", MODELS)
def test_compiled_steps(name, compiler, build, labelled, agrees):
    """Outputs and gradients in training, in mixed precision as in the `Trainer`."""
    class_name, changes = MODELS[name]
    model = build(class_name, **changes).train()
    agrees(model, labelled(model), torch.bfloat16, autocast=True, run=lambda ours: torch.compile(ours, **compiler))


@pytest.mark.parametrize("name", FEW)
def test_compiled_for_any_length(name, compiler, build, labelled, device, placed, assert_same_outputs):
    dtype = torch.bfloat16
    class_name, changes = MODELS[name]
    model = build(class_name, **changes).to(dtype)
    ours = torch.compile(copy.deepcopy(model).to(device), dynamic=True, **compiler)
    model = model.float()
    with torch.no_grad():
        for batch, length in ((3, 9), (2, 5), (4, 11)):
            inputs = labelled(model, batch, length)
            assert_same_outputs(ours(**placed(inputs, device)), model(**inputs), inputs, dtype)


@pytest.mark.parametrize("name", FEW)
def test_reduce_overhead(name, build, labelled, placed, cuda, assert_close, assert_same_outputs):
    """Inference and training steps as CUDA graphs: recorded at the second call, replayed from the third on."""
    class_name, changes = MODELS[name]
    model = build(class_name, **changes)
    ours = copy.deepcopy(model).to(cuda)
    counters.clear()
    compiled = torch.compile(ours, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        inputs = labelled(model)
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            found = {key: v.clone() for key, v in compiled(**placed(inputs, cuda)).items() if torch.is_tensor(v)}
            expected = {key: v for key, v in model(**inputs).items() if torch.is_tensor(v)}
        assert_same_outputs(found, expected, inputs, torch.float32)
    for _ in range(4):
        inputs = labelled(model)
        torch.compiler.cudagraph_mark_step_begin()
        compiled(**placed(inputs, cuda)).loss.backward()
        model(**inputs).loss.backward()
        for (key, one), other in zip(ours.named_parameters(), model.parameters(), strict=True):
            if other.grad is not None:
                assert_close(one.grad, other.grad, torch.float32, key, floor=1e-2, factor=10)
                one.grad = other.grad = None
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("class_name", DECODERS)
def test_decoding_steps_with_a_static_cache(class_name, mode, compiler, build, device, assert_close):
    """One graph for all steps; with "reduce-overhead" it is a CUDA graph."""
    if mode == "reduce-overhead" and device.type == "cpu":
        pytest.skip("is about CUDA alone")
    model = build(class_name, max_position_embeddings=16)
    ours = copy.deepcopy(model).to(device)
    options = {"mode": mode} if mode != "default" else {"backend": compiler["backend"]}
    counters.clear()
    step = torch.compile(ours.forward, fullgraph=True, **options)
    ids, mask = torch.randint(1, 37, (2, 12)), torch.ones(2, 16, dtype=torch.long)
    mask[0, :2] = 0
    cache = StaticCache(config=ours.config, max_cache_len=16)
    with torch.no_grad():
        ours(ids[:, :4].to(device), attention_mask=mask.to(device), past_key_values=cache)
        found = []
        for index in range(4, 12):
            torch.compiler.cudagraph_mark_step_begin()
            token = ids[:, index, None].to(device)
            found.append(step(token, attention_mask=mask.to(device), past_key_values=cache).logits.clone())
        expected = model(ids, attention_mask=mask[:, :12]).logits[:, 4:]
    assert_close(torch.cat(found, dim=1), expected, torch.float32)
    assert counters["inductor"]["cudagraph_skips"] == 0


@HALF
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention", "flash_attention_2"])
@pytest.mark.parametrize(
    "class_name", ["AMLPForMaskedLM", "AMLPForCausalLM", "SynthesizerForMaskedLM", "SynthesizerForCausalLM"]
)
def test_attention_implementations(class_name, implementation, packed, dtype, build, labelled, agrees, device):
    if implementation == "flash_attention_2":
        if "Synthesizer" in class_name or packed:
            pytest.skip("flash attention takes no bias of positions and no mask of documents")
        if not is_flash_attn_2_available():
            pytest.skip("flash-attn is not installed")
    if implementation == "flex_attention" and device.type == "cpu":
        pytest.skip("is compiled for a GPU; the CPU's is tested in tests/modeling")
    changes = {"attention_components": ["vanilla", "random"]} if "Synthesizer" in class_name else {}
    model = build(class_name, **changes)
    inputs = labelled(model)
    if packed:  # a first document of three real tokens
        inputs["seq_idx"] = (inputs["attention_mask"].cumsum(dim=-1) > 3).long()

    def run(ours):
        ours.set_attn_implementation(implementation)
        return ours

    agrees(model, inputs, dtype, run=run)


# What is allowed to wait, with the reasons: the list in modeling/README.md.
WAITS_FOR_PADDING = ("AMLP", "HybridBert", "MLPMixer", "Synthesizer")


@pytest.mark.parametrize("mode", ["training", "mixed precision", "inference"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_nothing_waits_for_the_device(class_name, masked, mode, build, labelled, placed, cuda):
    """Forward and backward pass of a training step, and inference: an operation that waits raises an error."""
    if masked and re.search("Image|Backbone", class_name):
        pytest.skip("images have no padding")
    model = build(class_name).train(mode != "inference")
    inputs = placed(labelled(model, masked=masked), cuda)
    model.to(cuda)

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "mixed precision"):
            return model(**inputs)

    step()  # allocates, and loads kernels
    waits = masked and class_name.startswith(WAITS_FOR_PADDING)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.set_grad_enabled(mode != "inference"):
            with pytest.raises(RuntimeError, match="synchroniz") if waits else nullcontext():
                outputs = step()
            if not waits and "labels" in inputs and mode != "inference":
                outputs.loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
