"""What the checks cost a compiled model. Their messages are tested with the models (`test_bad_calls.py`)."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tokenmixers.modeling.inputs import input_checks


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch.compiler.reset()


def _check_all(embeds, types, states):
    batch, length, hidden_size = embeds.shape
    input_checks.embed_text(None, None, embeds, hidden_size)
    input_checks.check_token_types(types, embeds)
    input_checks.check_positions(types, (batch, length), max_length=9)
    input_checks.check_encoder_states(states, states[..., 0], batch, hidden_size)
    input_checks.check_full_mask((states @ states.mT)[:, None], batch, states.shape[1])
    return embeds + 1


def test_sizes_do_not_become_constants():
    counter = CompileCounter()
    compiled = torch.compile(_check_all, backend=counter, fullgraph=True, dynamic=True)
    for batch, length, source_length in ((2, 5, 7), (3, 4, 6), (4, 6, 5)):
        types, states = torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, source_length, 8)
        compiled(torch.zeros(batch, length, 8), types, states)
    assert counter.frame_count == 1
