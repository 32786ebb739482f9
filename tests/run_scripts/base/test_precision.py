"""Which precision a machine gets: for processors and GPUs that are not here, by what PyTorch would say of them."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tokenmixers.run_scripts.base import precision


X86 = {"architecture": "x86_64", "avx2": True, "avx512_f": True, "avx512_bw": True, "avx512_bf16": False}
X86 |= {"avx512_vnni": True, "amx_bf16": False, "amx_tile": False}
ARM = {"architecture": "aarch64", "neon": True, "dot": True, "bf16": False, "sve_bf16": False}
#: What `torch.cpu.get_capabilities()` says of a processor, and what follows.
PROCESSORS = {
    "Xeon with AVX-512 alone": (X86, False, "lacks AVX512-BF16 and AMX"),
    "EPYC of Zen 3": ({**X86, "avx512_f": False}, False, "lacks AVX512-BF16 and AMX"),
    "EPYC of Zen 4": ({**X86, "avx512_bf16": True}, True, "has AVX512-BF16"),
    "Xeon with AMX": ({**X86, "avx512_bf16": True, "amx_bf16": True}, True, "has AVX512-BF16 and AMX"),
    "Graviton 2": (ARM, False, "lacks Arm's bfloat16 instructions"),
    "Graviton 3": ({**ARM, "bf16": True}, True, "has Arm's bfloat16 instructions"),
    "another make": ({"architecture": "ppc64le"}, False, "lacks"),
}


@pytest.fixture
def _no_bfloat16():
    """Replaces that of all tests: here the processor says what it has."""


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name, monkeypatch):
    capabilities, native, words = PROCESSORS[name]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    found, reason = precision.native_bfloat16(torch.device("cpu"))
    assert found is native
    assert words in reason
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # as on a Mac
    assert not precision.native_bfloat16(torch.device("cpu"))[0]


def test_this_processor_is_asked():
    """The names are PyTorch's own: a misspelt one would never be found."""
    capabilities = torch.cpu.get_capabilities()
    known = precision.ARM_INSTRUCTIONS if capabilities["architecture"] == "aarch64" else precision.X86_INSTRUCTIONS
    assert set(known) <= set(capabilities)
    native = any(capabilities[name] for name in known) and torch.backends.mkldnn.is_available()
    assert precision.native_bfloat16(torch.device("cpu"))[0] is native


@pytest.mark.parametrize(("capability", "native"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_nvidia(capability, native, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found, reason = precision.native_bfloat16(torch.device("cuda:0"))
    assert found is native
    assert "compute capability {}.{}".format(*capability) in reason
    assert ("emulates" in reason) is not native


@pytest.mark.parametrize(
    ("architecture", "native"),
    [("gfx906:sramecc+", False), ("gfx908:xnack-", True), ("gfx942", True), ("gfx1030", False), ("gfx1100", True)],
)
def test_amd(architecture, native, monkeypatch):
    """PyTorch says yes to all of them."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    properties = SimpleNamespace(gcnArchName=architecture)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert precision.native_bfloat16(torch.device("cuda:0"))[0] is native


def test_other_devices(monkeypatch):
    assert precision.native_bfloat16(torch.device("mps"))[0] is False
    monkeypatch.setattr(torch.xpu, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert precision.native_bfloat16(torch.device("xpu:0"))[0] is False
    asked = SimpleNamespace(is_bf16_supported=lambda: True)
    monkeypatch.setattr(torch, "hpu", asked, raising=False)
    assert precision.native_bfloat16(torch.device("hpu:0"))[0] is True


class _Clock(TorchDispatchMode):
    """Stands still but for matrix products: a millisecond each in float32, three in bfloat16."""

    def __init__(self):
        super().__init__()
        self.seconds, self.products = 0.0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            self.seconds += 0.003 if outputs.dtype == torch.bfloat16 else 0.001
            self.products.add((function, outputs.dtype))
        return outputs


def test_slowdown_is_measured(monkeypatch):
    """With products that take three times as long in bfloat16: those of both types, forward and backward."""
    with _Clock() as clock:
        monkeypatch.setattr(precision.time, "process_time", lambda: clock.seconds)
        assert precision.bfloat16_slowdown(torch.device("cpu")) == pytest.approx(3)
    assert len(clock.products) == 4
