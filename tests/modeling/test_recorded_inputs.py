import pytest
import torch
from torch import nn

from tokenmixers.modeling.recorded_inputs import record_inputs


def test_the_last_call_of_each_module_is_recorded():
    first, second = nn.Linear(2, 3), nn.Bilinear(3, 3, 1)
    a, b = torch.randn(4, 2), torch.randn(5, 2)
    with record_inputs([second, first]) as inputs:
        first(a)
        hidden = first(b)
        second(hidden, hidden)
    assert inputs.keys() == {first, second}
    assert inputs[first] == (b,) and inputs[second] == (hidden, hidden)
    first(a)
    assert inputs[first] == (b,)


def test_modules_are_as_before_after_an_error():
    module = nn.Linear(2, 2)
    with pytest.raises(KeyError), record_inputs([module]):
        raise KeyError
    assert not module._forward_pre_hooks
