"""The counter of bytes against counts by hand, and what the models must not pass over."""

import re

import pytest
import torch

from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS
from tokenmixers.run_scripts.benchmarks import memory_passes
from tokenmixers.run_scripts.benchmarks.memory_passes import ByteCounter, count_layer, encoder_config


BATCH, LENGTH = 3, 4
FAMILIES = {
    "gmlp": ("GMLPModel", {}),
    "gmlp-full": ("GMLPModel", {"spatial_weight_type": "full"}),
    "amlp": ("AMLPModel", {}),
    "mlp_mixer": ("MLPMixerModel", {}),
    "random": ("SynthesizerModel", {"attention_components": ["random"]}),
    "dense": ("SynthesizerModel", {"attention_components": ["dense"]}),
    "vanilla": ("SynthesizerModel", {"attention_components": ["vanilla"]}),
}


@pytest.fixture
def config_of(tiny_model):
    def build(family):
        name, changes = FAMILIES[family]
        return tiny_model(name, max_position_embeddings=6, **changes).config

    return build


@pytest.fixture
def count(config_of):
    return lambda family, *case: count_layer(config_of(family), *case, batch=BATCH, length=LENGTH)


def test_each_number_is_counted_where_it_is_read_or_written():
    x, row = torch.ones(6, 4), torch.ones(4, dtype=torch.bfloat16)
    with ByteCounter() as counter:
        x.view(4, 6).mT[1:].expand(2, 5, 4).detach()  # views
        torch.empty(1000)
        sums = x + row.expand(6, 4)
        sums.zero_()
        sums.add_(1)
        x @ x.mT
    assert counter.bytes.others == {"add": 6 * 4 * 4 * 2 + 4 * 2, "zero_": 6 * 4 * 4, "add_": 6 * 4 * 4 * 2}
    assert counter.bytes.products == {"mm": 2 * 6 * 4 * 4 + 6 * 6 * 4}
    assert counter.bytes.operators == {"add": 1, "zero_": 1, "add_": 1, "mm": 1}


def test_a_gmlp_layer_by_hand(count, config_of):
    """Figure 1 and Table 3: two norms, GELU, the gate's product and the residual, with operands and results."""
    config = config_of("gmlp")
    tokens, d, f, g = BATCH * LENGTH, config.hidden_size, config.intermediate_size, config.gate_size
    norms = sum(2 * tokens * width + 2 * width + 2 * tokens for width in (d, g))
    expected = {"native_layer_norm": norms, "gelu": 2 * tokens * f, "mul": 3 * tokens * g, "add": 3 * tokens * d}
    forward = count("gmlp", "inference", "float32", "none").others
    assert {name: forward[name] for name in expected} == {name: 4 * size for name, size in expected.items()}
    of_matrix = 4 * 12 * LENGTH**2 * (1 + BATCH)  # at most: it is made of its diagonals
    assert sum(size for name, size in forward.items() if name not in expected) <= of_matrix

    expected["mul"] += 2 * 3 * tokens * g  # the gradients of both factors
    expected["add"] += 3 * tokens * d  # of both branches
    expected["cat"] = 2 * tokens * f  # of both halves
    expected["gelu_backward"] = 3 * tokens * f
    expected["native_layer_norm_backward"] = sum(3 * tokens * width + 4 * width + 2 * tokens for width in (d, g))
    step = count("gmlp", "training", "float32", "none").others
    assert {name: step[name] for name in expected} == {name: 4 * size for name, size in expected.items()}
    of_biases = 4 * tokens * (d + f + g)  # their gradients are sums over tokens
    assert of_biases < sum(size for name, size in step.items() if name not in expected) <= of_biases + of_matrix


def test_a_mixer_layer_by_hand(count, config_of):
    """Two norms, two activations and two residuals, and nothing else."""
    config = config_of("mlp_mixer")
    tokens, d = BATCH * LENGTH, config.hidden_size
    activations = 2 * BATCH * config.token_mixing_size * d + 2 * tokens * config.intermediate_size
    norms, residuals = 2 * (2 * tokens * d + 2 * d + 2 * tokens), 2 * 3 * tokens * d
    found = count("mlp_mixer", "inference", "float32", "none").others
    assert found == {"native_layer_norm": 4 * norms, "gelu": 4 * activations, "add": 4 * residuals}


@pytest.mark.parametrize("mode", memory_passes.MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_without_padding_costs_nothing(family, mode, count):
    for precision in ("float32", "autocast"):
        assert count(family, mode, precision, "ones") == count(family, mode, precision, "none")


@pytest.mark.parametrize("family", ["gmlp", "gmlp-full", "amlp"])
def test_padding_costs_no_pass_over_the_activations(family, count):
    masked, free = (count(family, "inference", "float32", mask).others for mask in ("padding", "none"))
    assert masked["mul"] == free["mul"]
    of_a_matrix = 4 * BATCH * LENGTH**2
    assert masked["masked_fill"] <= 2 * of_a_matrix


def test_toeplitz_layers_share_the_index_of_their_diagonals(count):
    found = count("gmlp", "inference", "float32", "none").others
    assert "gather" in found and "arange" not in found


@pytest.mark.parametrize(("family", "readers"), [("amlp", ("proj_in", "qkv_proj")), ("vanilla", "qkv")])
def test_inputs_are_cast_once_for_all_that_read_them(family, readers, tiny_model):
    """Under autocast each linear layer would cast its own copy."""
    name, changes = FAMILIES[family]
    model, seen = tiny_model(name, num_hidden_layers=1, **changes), []
    readers = [f"{reader}_proj" if len(reader) == 1 else reader for reader in readers]
    for module_name, module in model.named_modules():
        if module_name.rpartition(".")[2] in readers:
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(2, 3, dtype=torch.long))
    assert len(seen) == len(readers) and all(x is seen[0] and x.dtype == torch.bfloat16 for x in seen)


def test_the_page_has_todays_counts():
    """Cells of the table are `before -> now / products`, in MB."""
    text = (MODEL_CARDS / "benchmarks" / "README.md").read_text(encoding="utf-8")
    (cell,) = re.findall(r"^\| gmlp-base, ones +\| +([^|]+?) +\|", text, re.M)
    found = count_layer(encoder_config("gmlp-base"), "inference", "float32", "ones")
    now = f"{found.others.total() / 1e6:.0f} / {found.products.total() / 1e6:.0f}"
    assert cell.endswith(f" → {now}")
    text = " ".join(text.split())
    numbers = re.search(r"gmlp-base starts .* inference \((\d+)\) and .* training with autocast \((\d+)\)", text)
    cases = (("inference", "bfloat16"), ("training", "autocast"))
    found = [count_layer(encoder_config("gmlp-base"), *case, "none").operators.total() for case in cases]
    assert numbers is not None and list(map(int, numbers.groups())) == found


def test_the_command_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(memory_passes, "MODES", ("inference",))
    monkeypatch.setattr(memory_passes, "PRECISIONS", {"float32": (torch.float32, False)})
    memory_passes.main(["--models", "gmlp-base", "--masks", "none", "--operators"])
    printed = capsys.readouterr().out
    assert "| gelu" in printed and re.search(r"\| gmlp-base \| inference \| +float32 \| none \| +[\d.]+ \|", printed)
