import pytest
import torch

from tokenmixers.modeling.inputs.exporting import is_exporting


class AddsOneInExports(torch.nn.Module):
    def forward(self, inputs):
        return inputs + int(is_exporting())


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs(strict):
    program = torch.export.export(AddsOneInExports(), (torch.zeros(1),), strict=strict)
    assert program.module()(torch.zeros(1)).item() == 1


def test_neither_calls_nor_compiled_graphs():
    torch.compiler.reset()
    for module in (AddsOneInExports(), torch.compile(AddsOneInExports(), backend="eager", fullgraph=True)):
        assert module(torch.zeros(1)).item() == 0
