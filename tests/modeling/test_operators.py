"""What a layer must not compute: masks without padding, padding in the activations, the same cast or index twice."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


BATCH, LENGTH = 3, 4
FAMILIES = {
    "gmlp": ("GMLPModel", {}),
    "gmlp-full": ("GMLPModel", {"spatial_weight_type": "full"}),
    "amlp": ("AMLPModel", {}),
    "mlp_mixer": ("MLPMixerModel", {}),
    "random": ("SynthesizerModel", {"attention_components": ["random"]}),
    "dense": ("SynthesizerModel", {"attention_components": ["dense"]}),
    "vanilla": ("SynthesizerModel", {"attention_components": ["vanilla"]}),
    "hybrid": ("HybridBertModel", {}),
}


class Operators(TorchDispatchMode):
    """Counts the operators, backward passes included, that compute: by name and shape of their result."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(result, torch.Tensor):
            self.found[func.overloadpacket.__name__, result.shape] += 1
        return result


@pytest.fixture
def of_a_layer(tiny_model):
    """`of_a_layer(family, mode, mask, autocast)`: those of a model with two layers without those of one."""

    def count(family, mode="inference", mask="none", autocast=False):
        name, changes = FAMILIES[family]
        inputs = {"input_ids": torch.full((BATCH, LENGTH), 3)}
        if mask != "none":
            inputs["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
        if mask == "padding":
            inputs["attention_mask"][0, LENGTH // 2 :] = 0
        found, training = [], mode == "training"
        for layers in (1, 2):
            model = tiny_model(name, max_position_embeddings=6, num_hidden_layers=layers, **changes).train(training)
            with Operators() as operators, torch.set_grad_enabled(training):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    hidden_states = model(**inputs).last_hidden_state
                if training:
                    hidden_states.sum().backward()
            found.append(operators.found)
        return found[1] - found[0]

    return count


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_without_padding_costs_nothing(family, mode, of_a_layer):
    for autocast in (False, True):
        found = of_a_layer(family, mode, "ones", autocast)
        assert found and found == of_a_layer(family, mode, "none", autocast)


@pytest.mark.parametrize("family", ["gmlp", "gmlp-full", "amlp"])
def test_padding_costs_no_pass_over_the_activations(family, of_a_layer):
    padded, free = of_a_layer(family, mask="padding"), of_a_layer(family)
    more = padded - free
    assert more and max(shape.numel() for _, shape in more) <= BATCH * LENGTH**2


def test_toeplitz_layers_share_the_index_of_their_diagonals(of_a_layer):
    names = {name for name, _ in of_a_layer("gmlp")}
    assert "gather" in names and "arange" not in names


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
