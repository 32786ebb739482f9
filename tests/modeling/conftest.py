import math

import pytest
import torch


@pytest.fixture(scope="session")
def gmlp_states(spatial_matrix):
    """`gmlp_states(stack, states, real=None)`: one sequence `(tokens, hidden_size)` after each layer of gMLP or aMLP.

    From the papers' Figures 1 and 6. The first entry is what was given, the last has gone through the final norm.
    `real` says of each token whether it is no padding.
    """

    def norm(x, module, eps):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * module.weight + module.bias

    def linear(x, module):
        return x @ module.weight.mT + module.bias

    def attend(y, attention, seen):
        query, key, value = linear(y, attention.qkv_proj).chunk(3, -1)
        rows = []
        for q, of_token in zip(query, seen.tolist(), strict=True):
            powers = [torch.exp(q @ k / math.sqrt(len(k))) * one for k, one in zip(key, of_token, strict=True)]
            rows.append(sum(power * v for power, v in zip(powers, value, strict=True)) / sum(powers))
        return linear(torch.stack(rows), attention.out_proj)

    def compute(stack, states, real=None):
        length, causal = len(states), stack.config.is_decoder
        real = [True] * length if real is None else real
        positions = [max(0, i - real.index(True)) for i in range(length)]
        seen = torch.tensor([[real[j] and (j <= i or not causal) for j in range(length)] for i in range(length)])
        found = [states]
        for layer in stack.layers:
            y, unit = norm(found[-1], layer.norm, 1e-6), layer.sgu
            z = linear(y, layer.proj_in)
            z = 0.5 * z * (1 + torch.erf(z / 2**0.5))
            passed, gate = z.chunk(2, -1) if stack.config.gate_type == "split" else (z, z)
            weights = spatial_matrix(unit.spatial_proj, positions).where(seen, 0)
            mixed = weights @ norm(gate, unit.norm, 1e-5) + unit.spatial_proj.bias[positions][:, None]
            if hasattr(layer, "attention"):
                mixed = mixed + attend(y, layer.attention, seen)
            z = passed + mixed if stack.config.gate_type == "additive" else passed * mixed
            found.append(found[-1] + linear(z, layer.proj_out))
        return [*found[:-1], norm(found[-1], stack.norm, 1e-6)]

    return compute
