"""Helpers shared by the tests, as fixtures: the repository root is a package, so test modules import nothing here."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path


# Before anything reads them: no test may wait for, or depend on, a network,
os.environ["HF_HUB_OFFLINE"] = "1"
# nor what this user has in the cache folder, in which tests leave code of checkpoints and choices of kernels.
if (
    "PYTEST_XDIST_WORKER" not in os.environ
):  # workers have the folder of the process that started them, which removes it
    _hf_home = tempfile.TemporaryDirectory(prefix="hf-home-")
    os.environ["HF_HOME"] = _hf_home.name

import pytest

import tokenmixers


# --- what every process needs that runs tests --------------------------------------------------------------------


def _seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which formats a stack of calls for each kind of device: a millisecond for every test."""
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class _TorchRandom:
    """Torch's generator in the form in which Hypothesis resets generators before every example."""

    def __init__(self):
        import torch

        self.seed, self.getstate, self.setstate = _seed_torch, torch.get_rng_state, torch.set_rng_state


def pytest_configure(config: pytest.Config) -> None:
    # The process that hands tests out to others runs none. That it imports nothing saves the time of it at the start.
    runs_tests = not config.getoption("numprocesses", None) or hasattr(config, "workerinput")
    has_hypothesis = importlib.util.find_spec("hypothesis") is not None  # the tests of `tests/gpu` need none
    if has_hypothesis and (runs_tests or config.getoption("--hypothesis-profile")):  # loaded in every process
        import hypothesis

        hypothesis.settings.register_profile("default", max_examples=10, deadline=None)
        hypothesis.settings.register_profile("ci", max_examples=10, deadline=None, derandomize=True)
        hypothesis.settings.register_profile("thorough", max_examples=50, deadline=None)
        hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
    if runs_tests:
        import torch

        # One core is enough for models this small, and torch's threads would fight with those of parallel workers.
        torch.set_num_threads(1)
        if has_hypothesis:
            config.torch_random = _TorchRandom()  # Hypothesis keeps a weak reference only
            hypothesis.register_random(config.torch_random)


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Collections of garbage look at nothing that is there now: `Trainer` and the compiler ask for many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded():
    import numpy

    random.seed(0)
    numpy.random.seed(0)
    _seed_torch(0)


# --- the fast cases of parametrised tests ------------------------------------------------------------------------


def _aspects(item: pytest.Item) -> list[tuple[str, str]]:
    """What the item's case is a case of: a value of each parameter; of a class of models the family and the head."""
    aspects = []
    for name, value in item.callspec.params.items():
        family_and_head = re.fullmatch("(GMLP|AMLP|MLPMixer|Synthesizer|HybridBert)(For.+|Model|Backbone)", str(value))
        if family_and_head:
            aspects += [(f"family of {name}", family_and_head[1]), (f"head of {name}", family_and_head[2])]
        else:
            aspects.append((name, repr(value)))
    return aspects


def _fewest_that_show_all(items: list[pytest.Item], together: int) -> set[pytest.Item]:
    """A small set of the items with every combination of `together` aspects that any of them has, chosen greedily."""
    combinations = {item: set(itertools.combinations(_aspects(item), together)) for item in items}
    missing, chosen, times = set().union(*combinations.values()), set(), Counter()

    def gain(item):
        return len(combinations[item] & missing), -sum(times[aspect] for aspect in _aspects(item))

    while missing:
        best = max(items, key=gain)
        chosen.add(best)
        missing -= combinations[best]
        times.update(_aspects(best))
    return chosen


@pytest.hookimpl(wrapper=True)  # here a test has all its cases, whichever of them are asked for
def pytest_pycollect_makeitem(name: str):
    cases = yield
    mark = cases[0].get_closest_marker("fast_cases") if isinstance(cases, list) and cases else None
    if mark is None:
        return cases
    values = {key: value if isinstance(value, list) else [value] for key, value in mark.kwargs.items()}
    together = values.pop("together", [1])[0]
    fast = [item for item in cases if not item.get_closest_marker("slow")]
    for key, allowed in values.items():
        fast = [item for item in fast if key in item.callspec.params and item.callspec.params[key] in allowed]
        if not fast:
            raise pytest.UsageError(f"fast_cases of {name}: no case that is not slow has {key} among {allowed!r}")
    fast = _fewest_that_show_all(fast, together)
    for item in cases:
        if item not in fast:
            item.add_marker(pytest.mark.slow)
    return cases


# --- tests on a GPU ----------------------------------------------------------------------------------------------


DEVICE = os.environ.get("TOKENMIXERS_TEST_DEVICE", "cuda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if DEVICE == "cuda" and not torch.cuda.is_available():
        reason = "needs a GPU that PyTorch can use (TOKENMIXERS_TEST_DEVICE=cpu runs the test on the CPU)"
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device():
    """The device of the tests marked `gpu`: the GPU, or what TOKENMIXERS_TEST_DEVICE names."""
    import torch

    return torch.device(DEVICE)


@pytest.fixture
def cuda(device):
    """For tests that only make sense on a GPU of CUDA."""
    if device.type != "cuda":
        pytest.skip("is about CUDA alone")
    return device


# --- fixtures ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """`alone(code, arguments)`: run Python where this package cannot be imported, see alone.py; what it printed."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, Path(__file__).with_name("alone.py")]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, cwd=folder, env=environment) as process:

        def run(code: str, arguments=()) -> str:
            print(json.dumps({"code": code, "arguments": [*map(str, arguments)]}), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())
            assert answer["status"] == 0, answer["errors"][-3000:]
            return answer["output"]

        yield run


@pytest.fixture(scope="session")
def tiny_config():
    """`tiny_config(**changes)`: a configuration small enough for every test, with odd and distinct sizes.

    Of gMLP, unless another `config_class` is given whose models take the same sizes.
    """

    def build(config_class=tokenmixers.GMLPConfig, **changes) -> tokenmixers.GMLPConfig:
        sizes = {
            "vocab_size": 37,
            "hidden_size": 10,
            "intermediate_size": 14,
            "num_hidden_layers": 2,
            "max_position_embeddings": 11,
        }
        if config_class is tokenmixers.MLPMixerConfig:
            sizes["token_mixing_size"] = 7
        if config_class is tokenmixers.HybridBertConfig:
            layers = changes.get("num_hidden_layers") or 2
            types = ["random_synthesizer" if layer % 2 == 0 else "full_attention" for layer in range(layers)]
            sizes |= {"num_attention_heads": 2, "token_mixers": types, "num_hidden_layers": None}
            sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # as in gMLP
        return config_class(**{**sizes, **changes})

    return build


@pytest.fixture(scope="session")
def randomise():
    """`randomise(module)`: give every parameter random values, so that no transposed or skipped weight goes unseen.

    A fresh gMLP hides most mistakes: its spatial weights are nearly zero, its biases constant. Each matrix keeps the
    scale of its fan-in, so that activations stay of order one.
    """

    import torch

    def fill(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
                offset = 1.0 if parameter.dim() == 1 and name.endswith("norm.weight") else 0.0
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(offset + scale * noise)
        return module

    return fill


@pytest.fixture(scope="session")
def tiny_model(tiny_config, randomise):
    """`tiny_model(class_name, **changes)`: a model of any class with random weights, and what its class needs set."""

    import torch

    def build(name: str, **changes) -> torch.nn.Module:
        model_class = getattr(tokenmixers, name)
        needed = {}
        if "Synthesizer" in name:
            needed |= {"num_attention_heads": 2, "head_dim": 4}
        if re.search("Image|Backbone", name):
            needed |= {"image_size": 8, "patch_size": 4}
        if "CausalLM" in name:
            needed |= {"is_decoder": True}
        if "ConditionalGeneration" in name:
            needed |= {"is_encoder_decoder": True, "num_decoder_layers": 2, "decoder_start_token_id": 0}
        return randomise(model_class(tiny_config(model_class.config_class, **{**needed, **changes}))).eval()

    return build


@pytest.fixture(scope="session")
def undropped_model(tiny_model):
    """`undropped_model(class_name, **changes)`: as `tiny_model`, without dropout and in training."""

    def build(name: str, **changes):
        rates = {"hidden_dropout_prob": 0.0} | ({"attention_dropout": 0.0} if "Synthesizer" in name else {})
        return tiny_model(name, **{**rates, **changes}).train()

    return build


@pytest.fixture(scope="session")
def tiny_inputs():
    """`tiny_inputs(model, batch, length, masked=True)`: what any model of `tiny_model` reads, padded on a side."""

    import torch

    def build(model: torch.nn.Module, batch: int, length: int, masked: bool = True) -> dict[str, torch.Tensor]:
        name = type(model).__name__
        if re.search("Image|Backbone", name):
            return {"pixel_values": torch.randn(batch, 3, 8, 8)}
        shape = (batch, 3, length) if "MultipleChoice" in name else (batch, length)
        inputs = {"input_ids": torch.randint(37, shape)}
        if masked:  # padding on the right in even rows, on the left in odd ones
            keep = torch.randint(1, length + 1, (batch, 1))
            left, index = torch.arange(batch)[:, None] % 2 == 1, torch.arange(length)
            mask = torch.where(left, index >= length - keep, index < keep).long()
            inputs["attention_mask"] = mask[:, None].expand(shape) if len(shape) == 3 else mask
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(37, shape)
        return inputs

    return build


@pytest.fixture(scope="session")
def labels_for():
    """`labels_for(model, inputs)`: labels for the head of the model, if it has one. Padding has none."""

    import torch

    def build(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name, mask = type(model).__name__, inputs.get("attention_mask")
        classes = torch.arange(len(next(iter(inputs.values())))) % 2
        if name.endswith(("Model", "Backbone")):
            return {}
        if "QuestionAnswering" in name:  # a real token: scores of padding are the lowest number there is
            start = classes if mask is None else mask.argmax(dim=-1)
            return {"start_positions": start, "end_positions": start}
        if re.search("Image|SequenceClassification|MultipleChoice", name):
            return {"labels": classes}
        labels = inputs["input_ids"] % 2 if "TokenClassification" in name else inputs["input_ids"].clone()
        if mask is not None:
            labels = labels.where(mask != 0, -100)
            if "CausalLM" in name:  # padding predicts nothing, not even the first token after it
                labels[:, 1:] = labels[:, 1:].where(mask[:, :-1] != 0, -100)
        return {"labels": labels}

    return build


@pytest.fixture(scope="session")
def spatial_matrix():
    """`spatial_matrix(projection, rows, columns)`: the weights from the tokens at `columns` to those at `rows`.

    Written out with loops from the definition: `W[i, j] = w[n - 1 + j - i]` for Toeplitz weights `w`.
    """

    import torch

    def build(projection, rows: list[int], columns: list[int] | None = None) -> torch.Tensor:
        columns = rows if columns is None else columns
        weight, n = projection.weight, projection.max_length
        if weight.dim() == 1:
            return torch.stack([torch.stack([weight[n - 1 + j - i] for j in columns]) for i in rows])
        return torch.stack([torch.stack([weight[i, j] for j in columns]) for i in rows])

    return build


@pytest.fixture(scope="session")
def pad():
    """`pad(rows, length, offsets)`: one batch of 1-D tensors, and its mask; row `b` starts `offsets[b]` tokens late.

    Padding is filled with random numbers, so that anything that looks at it shows.
    """

    import torch

    def place(rows: list[torch.Tensor], length: int, offsets: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = torch.randint(0, 30, (len(rows), length))
        mask = torch.zeros(len(rows), length, dtype=torch.long)
        for index, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
            batch[index, offset : offset + len(row)] = row
            mask[index, offset : offset + len(row)] = 1
        return batch, mask

    return place


@pytest.fixture(scope="session")
def padded_layouts():
    """A strategy for `(lengths, padded length, offsets)` of a batch: padding left, right, on both sides or nowhere."""

    from hypothesis import strategies as st

    @st.composite
    def layouts(draw, max_length: int = 11, min_rows: int = 1, min_padded: int = 1):
        lengths = draw(st.lists(st.integers(1, max_length), min_size=min_rows, max_size=4))
        padded = draw(st.integers(max(min_padded, *lengths), max_length))
        side = draw(st.sampled_from(["left", "right", "any"]))
        places = {
            "left": lambda free: st.just(free),
            "right": lambda free: st.just(0),
            "any": lambda free: st.integers(0, free),
        }
        return lengths, padded, [draw(places[side](padded - length)) for length in lengths]

    return layouts
