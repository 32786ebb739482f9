"""The precision of training: bfloat16 where the processor or GPU supports it natively, else float32.

PyTorch supports bfloat16 everywhere, but without native instructions it is usually slower than float32, on many
processors more than ten times.
"""

import platform
import time

import torch
from torch import nn
from transformers.utils import is_torch_xla_available


#: Value of `--precision` except auto -> its full name.
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

#: PyTorch's name of an instruction set with bfloat16 matrix products -> the vendor's name.
X86_INSTRUCTIONS = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}
ARM_INSTRUCTIONS = {"bf16": "Arm's bfloat16 instructions"}

#: Prefixes of AMD's GPU architectures without bfloat16 instructions: all before CDNA 1 and RDNA 3.
ROCM_WITHOUT = ("gfx7", "gfx8", "gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c", "gfx10")


def has_accelerator() -> bool:
    """Whether there is a GPU or another accelerator."""
    return torch.accelerator.is_available() or is_torch_xla_available()


def device_type(use_cpu: bool) -> torch.device:
    """Type of the device that training will use.

    `TrainingArguments.device` has this too, but initializes the process group.
    """
    accelerator = None if use_cpu else torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None and not use_cpu and is_torch_xla_available():
        return torch.device("xla")
    return accelerator or torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Readable name of a device: `CPU, AMD EPYC` or `cuda:0, NVIDIA H100`."""
    if device.type == "cpu":
        return f"CPU, {torch.cpu.get_capabilities().get('cpu_name') or platform.processor() or platform.machine()}"
    ask = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return f"{device}, {ask(device)}" if ask else str(device)


def native_bfloat16(device: torch.device) -> tuple[bool, str]:
    """Whether a device has instructions for bfloat16, and the evidence."""
    if device.type == "cpu":
        return _of_processor()
    if device.type == "cuda" and torch.version.hip:
        name = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        native = not name.startswith(ROCM_WITHOUT)
        return native, f"{name} {'has' if native else 'lacks'} bfloat16 instructions"
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        capability = "compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
        return native, capability if native else f"{capability} only emulates bfloat16"
    if device.type == "xpu":
        native = torch.xpu.is_bf16_supported(including_emulation=False)
        return native, f"this GPU {'has' if native else 'lacks'} bfloat16 instructions"
    ask = getattr(getattr(torch, device.type, None), "is_bf16_supported", None)
    if ask is None:  # Apple's GPUs, some of which emulate bfloat16
        return False, f"PyTorch does not tell whether {device.type} devices have bfloat16 instructions"
    native = ask()
    return native, f"PyTorch reports that it {'has' if native else 'lacks'} bfloat16"


def _of_processor() -> tuple[bool, str]:
    capabilities = torch.cpu.get_capabilities()
    of_arm = str(capabilities.get("architecture", platform.machine())).lower().startswith(("arm", "aarch"))
    names = ARM_INSTRUCTIONS if of_arm else X86_INSTRUCTIONS
    found = [name for key, name in names.items() if capabilities.get(key)]
    if not found:
        return False, f"this processor lacks {' and '.join(names.values())}"
    if not torch.backends.mkldnn.is_available():
        return False, f"the processor has {found[0]}, but this PyTorch comes without oneDNN, which uses it"
    return True, f"the processor has {' and '.join(found)}"


def bfloat16_slowdown(device: torch.device) -> float:
    """Slow-down of a feed-forward layer in bfloat16 relative to float32, forward and backward.

    The measurement takes a few tenths of a second. On a CPU, it uses process time, which other processes do not
    affect.
    """
    from torch.utils import benchmark  # imported only by runs that need it

    on_cpu = device.type == "cpu"
    tokens, width = (128, 128) if on_cpu else (1024, 1024)
    layers = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    layer, x = nn.Sequential(*layers).to(device), torch.randn(tokens, width, device=device)
    clock = time.process_time if on_cpu else benchmark.timer

    def step(enabled: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            layer(x).sum().backward()

    def seconds(enabled: bool) -> float:
        timer = benchmark.Timer("step(enabled)", globals={"step": step, "enabled": enabled}, timer=clock)
        return min(timer.blocked_autorange(min_run_time=0.05).times)

    return seconds(True) / seconds(False)
