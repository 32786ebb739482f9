"""Experiments that compare models and layers: one function each, which yields its groups for one `Case`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import update_wrapper, wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from types import FunctionType, MethodType, ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

from tokenmixers import (
    AMLPForMaskedLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    SynthesizerConfig,
    SynthesizerForConditionalGeneration,
)

from ...modeling.conversion.t5 import synthesizer_from_t5
from ...modeling.conversion.timm import convert_timm_state_dict, timm_config
from ...modeling.kernels import use_kernels
from ...modeling.layers.spatial_gating_unit import SpatialGatingUnit
from ..base.errors import UserError
from ..base.optional_packages import import_optional
from ..base.shipped_files import MODEL_CARDS
from .arguments import BenchmarkArguments
from .floors import Floor
from .timing import Candidate, Case, Group, model_candidate


#: Fields of a ModernBERT without tokenizer. Some versions would compile parts of it by themselves on a GPU.
MODERN_BERT = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "reference_compile": False}


#: What timm imports of torchvision.
TORCHVISION = ("", ".datasets", ".models", ".models.feature_extraction", ".ops", ".ops.misc", ".transforms")
TORCHVISION += (".transforms.functional", ".utils")


def import_peer(package: str, cell: int) -> ModuleType:
    """Import a package to compare with. timm's models do not need torchvision, so it may be missing."""
    if package != "timm":
        return import_optional(package.replace("-", "_"), "bench", f"--cells {cell}")
    if find_spec("timm") is None:
        raise UserError(f"--cells {cell} needs timm, which is not installed: pip install --no-deps timm.")
    try:
        return import_module("timm")
    except (ImportError, RuntimeError):  # no torchvision, or one that was built for another PyTorch
        with empty_torchvision():
            return import_module("timm")


@contextmanager
def empty_torchvision() -> Iterator[None]:
    """Stand-ins for modules of torchvision, in which every name can be imported within the context."""
    names = [f"torchvision{name}" for name in TORCHVISION]
    found = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    sys.modules.update({name: MagicMock() for name in names})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(found)


Experiment = Callable[[Case, BenchmarkArguments], Iterator[Group]]


def built_on_device(experiment: Experiment) -> Experiment:
    """Make an experiment create its models and inputs on the case's device, which saves seconds on a GPU."""

    @wraps(experiment)
    def groups(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
        remaining = experiment(case, sizes)
        while True:
            with case.device:  # and not while the caller measures
                group = next(remaining, None)
            if group is None:
                return
            yield group

    return groups


def shipped_config(name: str, **changes: Any) -> PreTrainedConfig:
    """A shipped configuration, with changes, and without dropout."""
    config = AutoConfig.from_pretrained(MODEL_CARDS / name, hidden_dropout_prob=0.0, **changes)
    if hasattr(config, "attention_dropout"):
        config.attention_dropout = 0.0
    return config


@torch.no_grad()
def randomise_gates(model: nn.Module) -> nn.Module:
    """Randomise spatial weights and the head of timm's models, which start near 0 and would hide mistakes."""
    for name, parameter in model.named_parameters():
        if any(part in f".{name}" for part in (".spatial_proj.", ".gate.proj.", ".head.")):
            parameter.normal_(mean=float(name.endswith("proj.bias")), std=parameter.shape[-1] ** -0.5)
    return model


def tokens(vocab_size: int, *shape: int) -> torch.Tensor:
    """Random token ids without special tokens."""
    return torch.randint(3, vocab_size, shape)


@built_on_device
def images_against_timm(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """1: gMLP for images of 224 pixels and timm's, with the same weights."""
    timm = import_peer("timm", 1)
    for size in sizes.image_models:
        peer = randomise_gates(timm.create_model(f"gmlp_{size}_224"))
        peer.blocks = peer.blocks[: sizes.shrunk.get("num_hidden_layers")]
        ours = GMLPForImageClassification(timm_config(peer.state_dict()))
        ours.load_state_dict(convert_timm_state_dict(peer.state_dict()))
        pixels, labels = torch.randn(sizes.batch_size, 3, 224, 224), torch.randint(1000, (sizes.batch_size,))
        common = {"labels": labels, "weights": "shared", "items": sizes.batch_size}
        candidates = [
            model_candidate("tokenmixers", ours, [{"pixel_values": pixels}], case, **common),
            model_candidate("timm", peer, [{"x": pixels}], case, **common),
        ]
        yield Group(f"gmlp-{size}-224", candidates, {"batch": sizes.batch_size, "unit": "images"})


def as_g_mlp_pytorch(model: GMLPForMaskedLM | AMLPForMaskedLM, length: int) -> nn.Module:
    """The same function as a `gMLP` of g-mlp-pytorch.

    That package has full spatial weights (its circulant ones are causal) and reads exactly `length` tokens. Its head
    has its own matrix, which is set to the embeddings. Its attention has no biases of queries, keys and values, so
    these must be 0.
    """
    config = model.config
    package = import_peer("g-mlp-pytorch", 2)
    peer = package.gMLP(
        num_tokens=config.vocab_size,
        dim=config.hidden_size,
        depth=config.num_hidden_layers,
        seq_len=length,
        ff_mult=config.intermediate_size // config.hidden_size,
        attn_dim=getattr(config, "attention_size", None),
    )
    block = "fn.fn.fn"
    names = {"norm": "fn.norm", "proj_in": f"{block}.proj_in.0", "sgu.norm": f"{block}.sgu.norm"}
    names["proj_out"] = f"{block}.proj_out"
    weights = model.state_dict()
    state = {"to_embed.weight": weights["model.embed_tokens.weight"]}
    for index, layer in enumerate(model.model.layers):
        for ours, theirs in names.items():
            for kind in ("weight", "bias"):
                state[f"layers.{index}.{theirs}.{kind}"] = weights[f"model.layers.{index}.{ours}.{kind}"]
        if isinstance(model, AMLPForMaskedLM):
            attention, theirs = f"model.layers.{index}.attention", f"layers.{index}.{block}.attn"
            state[f"{theirs}.to_qkv.weight"] = weights[f"{attention}.qkv_proj.weight"]
            for kind in ("weight", "bias"):
                state[f"{theirs}.to_out.{kind}"] = weights[f"{attention}.out_proj.{kind}"]
        projection = layer.sgu.spatial_proj
        state[f"layers.{index}.{block}.sgu.weight"] = projection.matrix(length)[None]
        state[f"layers.{index}.{block}.sgu.bias"] = projection.bias[None, :length]
    for kind in ("weight", "bias"):
        state[f"to_logits.0.{kind}"] = weights[f"model.norm.{kind}"]
        state[f"to_logits.1.{kind}"] = weights[f"lm_head.{kind}"]
    peer.load_state_dict(state)
    peer.to_logits[1].weight = peer.to_embed.weight
    return peer


@built_on_device
def text_against_g_mlp_pytorch(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """2: gMLP-base and aMLP-base with a language modelling head, Toeplitz and full weights, and g-mlp-pytorch's."""
    for name, length in product(("gmlp-base", "amlp-base"), sizes.lengths):
        # That package's norms all have PyTorch's default epsilon.
        config = shipped_config(name, layer_norm_eps=1e-5, **sizes.shrunk)
        ours = randomise_gates(AutoModelForMaskedLM.from_config(config))
        full = deepcopy(ours)
        full.to_full_spatial_weights()
        peer = as_g_mlp_pytorch(ours, length)
        ids = tokens(config.vocab_size, sizes.batch_size, length)
        labels = tokens(config.vocab_size, ids.numel())
        common = {"labels": labels, "weights": "shared", "items": ids.numel()}
        candidates = [
            model_candidate("tokenmixers, Toeplitz", ours, [{"input_ids": ids}], case, **common),
            model_candidate("tokenmixers, full", full, [{"input_ids": ids}], case, **common),
            model_candidate("g-mlp-pytorch", peer, [{"x": ids}], case, **common),
        ]
        yield Group(f"{name}, {length} tokens", candidates, {"batch": sizes.batch_size, "length": length})


def matched_transformer(config_class: type, parameters: int, **settings: Any) -> PreTrainedModel:
    """A BERT or ModernBERT with this many parameters; the width of its feed-forward layers is chosen to fit.

    Raises:
        ValueError: If the rest of the model already has more.
    """
    model_class = {BertConfig: BertModel, ModernBertConfig: ModernBertModel}[config_class]
    extra = {"add_pooling_layer": False} if config_class is BertConfig else {}

    def build(intermediate_size: int) -> PreTrainedModel:
        return model_class(config_class(**settings, intermediate_size=intermediate_size), **extra)

    with torch.device("meta"):
        small, large = (build(size).num_parameters() for size in (32, 64))
    size = 32 * (1 + round((parameters - small) / (large - small)))  # multiples of 32 suit matrix products
    if size < 32:
        raise ValueError(f"No {model_class.__name__} with {settings} has only {parameters:,} parameters.")
    return build(size)


def transformers_for(model: PreTrainedModel, sizes: BenchmarkArguments) -> dict[str, PreTrainedModel]:
    """BERT and ModernBERT with as many parameters, with the papers' base sizes or T5-small's width."""
    parameters, config = model.num_parameters(), model.config
    wide = parameters > 80e6
    width = 768 if wide else 512
    settings = {
        "vocab_size": config.vocab_size,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "max_position_embeddings": config.max_position_embeddings,
        "pad_token_id": 0,
    }
    bert = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    depths = (12, 22) if wide else (6, 8)
    if sizes.shrunk:
        depths = (sizes.shrunk["num_hidden_layers"],) * 2
    return {
        "BERT": matched_transformer(BertConfig, parameters, **settings, **bert, num_hidden_layers=depths[0]),
        "ModernBERT": matched_transformer(
            ModernBertConfig, parameters, **settings, **MODERN_BERT, num_hidden_layers=depths[1]
        ),
    }


@built_on_device
def encoders_against_transformers(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """3: every base encoder, and Transformers with as many parameters."""
    encoders = {name: {} for name in ("gmlp-base", "amlp-base")}
    if not sizes.gpu:  # whose time is short
        encoders |= {f"synthesizer-{name.replace('_', '-')}": {"is_encoder_decoder": False} for name in sizes.presets}
    for name, changes in encoders.items():
        config = shipped_config(name, **changes, **sizes.shrunk)
        ours = randomise_gates(AutoModel.from_config(config))
        models = {"tokenmixers": ours, **transformers_for(ours, sizes)}
        for length in sorted({min(length, config.max_position_embeddings) for length in sizes.lengths}):
            ids = tokens(config.vocab_size, sizes.batch_size, length)
            inputs = [{"input_ids": ids}]
            candidates = [
                model_candidate(kind, model, inputs, case, items=ids.numel()) for kind, model in models.items()
            ]
            yield Group(f"{name}, {length} tokens", candidates, {"batch": sizes.batch_size, "length": length})


@built_on_device
def sequence_to_sequence(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """4: T5 of the translation models' size, the Synthesizer with its weights, and the presets of that size."""
    layers, vocab_size = sizes.shrunk.get("num_hidden_layers", 6), sizes.shrunk.get("vocab_size", 32128)
    depth = {"num_layers": layers, "num_decoder_layers": layers}
    config = T5Config(vocab_size=vocab_size, **depth, dropout_rate=0.0, decoder_start_token_id=0)  # else T5-small
    t5 = T5ForConditionalGeneration(config)
    models = {"Synthesizer, vanilla": synthesizer_from_t5(t5), "T5": t5}
    changes = {"hidden_dropout_prob": 0.0, "attention_dropout": 0.0, **sizes.shrunk}
    for name in sizes.presets:
        if name not in ("vanilla", "vanilla_wide") and not name.startswith(("mesh_", "t5_base_")):
            preset = SynthesizerConfig.from_preset(name, **changes)
            models[f"Synthesizer, {name}"] = SynthesizerForConditionalGeneration(preset)
    length = min(sizes.lengths[-1], 256)
    source, target = (tokens(vocab_size, sizes.batch_size, size) for size in (length, length // 4))
    shared = {name: "shared" if name in ("Synthesizer, vanilla", "T5") else None for name in models}
    facts = {"batch": sizes.batch_size, "length": length}
    if case.training:
        inputs = [{"input_ids": source, "decoder_input_ids": target, "use_cache": False}]
        common = {"labels": target.flatten(), "items": source.numel() + target.numel()}
        candidates = [model_candidate(k, m, inputs, case, weights=shared[k], **common) for k, m in models.items()]
        yield Group("seq2seq step", candidates, facts)
        return
    inputs = [{"input_ids": source}]
    candidates = [
        model_candidate(name, model.get_encoder(), inputs, case, weights=shared[name], items=source.numel())
        for name, model in models.items()
    ]
    yield Group("seq2seq encoding", candidates, facts)
    candidates = [_decoding(name, model, source, target, case, shared[name]) for name, model in models.items()]
    yield Group("seq2seq decoding", candidates, facts)


def with_own_code(method: MethodType) -> MethodType:
    """The method with a copy of its code.

    All forward methods of Transformers share the code of one decorator, and PyTorch keeps the graphs of a code object
    in one list. When it explains why the graph of another model does not fit, it raises a KeyError for arguments that
    only that model got.
    """
    function = method.__func__
    code = function.__code__.replace(co_name=f"{function.__name__}_{id(method.__self__)}")
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return MethodType(update_wrapper(copied, function), method.__self__)


def _decoding(
    name: str,
    model: PreTrainedModel,
    source: torch.Tensor,
    target: torch.Tensor,
    case: Case,
    weights: str | None,
) -> Candidate:
    """Greedy decoding of as many tokens as `target` has, from a source that is already encoded.

    Outputs are the logits of the same steps with the tokens of `target`. Compiled models have static caches.
    """
    model = model.to(case.device, case.dtype).eval()
    source, target = source.to(case.device), target.to(case.device)
    with torch.inference_mode():
        encoded = model.get_encoder()(source).last_hidden_state

    @torch.inference_mode()
    def generate(**options: Any) -> Any:
        return model.generate(
            encoder_outputs=BaseModelOutput(encoded),
            min_new_tokens=target.shape[1],
            max_new_tokens=target.shape[1],
            do_sample=False,
            cache_implementation="static" if case.compiled else None,
            disable_compile=True,  # which is done above, on every device
            return_dict_in_generate=True,
            **options,
        )

    def outputs() -> list[torch.Tensor]:
        def forced(row: int, sentence: torch.Tensor) -> list[int]:
            return target[row, len(sentence) - 1, None].tolist()

        return [torch.stack(generate(prefix_allowed_tokens_fn=forced, output_logits=True).logits)]

    with Floor(model, case.device) as floor:
        cache = generate().past_key_values
    if case.compiled:
        model.forward = torch.compile(with_own_code(model.forward))
    sides = {"cache_bytes": cache.self_attention_cache, "cross_cache_bytes": cache.cross_attention_cache}
    facts = {}
    for key, side in sides.items():  # keys can be the values, in the same memory
        tensors = [tensor for layer in side.layers for tensor in (layer.keys, layer.values)]
        facts[key] = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
    facts["parameters"] = model.num_parameters()
    return Candidate(name, generate, outputs, weights, items=target.numel(), floor=floor, facts=facts)


@built_on_device
def growth(case: Case, sizes: BenchmarkArguments) -> Iterator[Group]:
    """6: growing lengths: gMLP-base's spatial gating unit and its products; layers of gMLP-base and ModernBERT."""
    config = shipped_config("gmlp-base")
    for length in sizes.growth:
        settings = (config.gate_layer_norm_eps, config.gate_type)
        matrix = randomise_gates(SpatialGatingUnit(config.intermediate_size, length, "toeplitz", *settings))
        by_length, full = deepcopy(matrix), deepcopy(matrix)
        use_kernels(by_length)
        full.spatial_proj.to_full()
        units = {"Toeplitz, by length": by_length, "Toeplitz, matrix": matrix, "full": full}
        if case.device.type != "cpu":
            del units["Toeplitz, by length"]  # there is no kernel for it
        inputs = [{"hidden_states": torch.randn(1, length, config.intermediate_size)}]
        candidates = [
            model_candidate(name, unit, inputs, case, weights="shared", items=length) for name, unit in units.items()
        ]
        yield Group(f"spatial gating unit, {length} tokens", candidates, {"batch": 1, "length": length})
    for length in sizes.growth:  # an eighth of both models; one of ModernBERT's three layers attends to all tokens
        common = {"vocab_size": 1000, "max_position_embeddings": length}
        ours = randomise_gates(AutoModel.from_config(shipped_config("gmlp-base", **common, num_hidden_layers=6)))
        settings = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 3, "pad_token_id": 0}
        peer = matched_transformer(ModernBertConfig, ours.num_parameters(), **common, **settings, **MODERN_BERT)
        inputs = [{"input_ids": tokens(1000, 1, length)}]
        candidates = [
            model_candidate(name, model, inputs, case, items=length)
            for name, model in {"gMLP, 6 layers": ours, "ModernBERT, 3 layers": peer}.items()
        ]
        yield Group(f"layers, {length} tokens", candidates, {"batch": 1, "length": length})
