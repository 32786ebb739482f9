"""Timing of several candidates: equal outputs, alternating calls, synchronised devices."""

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ..base.errors import UserError
from .floors import Floor


Inputs = Sequence[Mapping[str, Any]]

#: Largest difference of outputs and gradients, relative to their norm, that counts as rounding. Equal models of up to
#: 48 layers differ by 2e-6 in float32, gradients by 2e-4 where a ReLU's input is rounded to the other side of zero. In
#: bfloat16 they differ by 3e-2, which cannot show small mistakes.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1}


@dataclass
class Case:
    """How the candidates of a group run. `mode` is `"inference"` or `"training"`.

    `by_layer` compiles each layer of a model, with one graph for layers of the same code, and nothing else.
    """

    mode: str
    dtype: torch.dtype
    compiled: bool
    device: torch.device
    by_layer: bool = False

    @property
    def training(self) -> bool:
        return self.mode == "training"

    def __str__(self) -> str:
        return f"{self.mode}, {str(self.dtype).removeprefix('torch.')}, {'compiled' if self.compiled else 'eager'}"


@dataclass
class Candidate:
    """One of the functions that are timed in turn.

    Args:
        name: Name in the report.
        call: The function to time.
        outputs: Outputs that must be equal for candidates with the same `weights`.
        weights: Name of the weights; `None` if no other candidate has the same weights.
        items: Tokens or images per call, without padding.
        is_profiled: Whether to measure peak memory.
        floor: The matrix products of the call, which are timed in turn with it.
        facts: Further columns of the report.
    """

    name: str
    call: Callable[[], Any]
    outputs: Callable[[], list[torch.Tensor]] | None = None
    weights: str | None = None
    items: int | None = None
    is_profiled: bool = True
    floor: Floor | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Group:
    """Candidates whose calls alternate. All others are compared with the first."""

    name: str
    candidates: list[Candidate]
    facts: dict[str, Any] = field(default_factory=dict)


def model_candidate(
    name: str,
    model: nn.Module,
    inputs: Inputs,
    case: Case,
    *,
    labels: torch.Tensor | None = None,
    weights: str | None = None,
    comparable: Callable[[list[torch.Tensor]], list[torch.Tensor]] | None = None,
    items: int | None = None,
) -> Candidate:
    """A model that reads all of `inputs` in one call: forward passes, or training steps with AdamW.

    Inference in bfloat16 uses weights of that type; training uses float32 weights and autocast. The loss is the
    cross-entropy with `labels`, or else the mean square of the first output.

    Args:
        name: Name in the report.
        model: Any model; its first output counts.
        inputs: Keyword arguments for one or more calls of the model.
        case: How it runs.
        labels: Classes, one for each row of logits.
        weights: As for `Candidate`.
        comparable: Converts the outputs to a form that can be compared with another candidate's.
        items: As for `Candidate`.
    """
    model = model.to(case.device).train(case.training)
    if not case.training:
        model = model.to(case.dtype)
    inputs = [{key: _placed(value, model, case) for key, value in batch.items()} for batch in inputs]
    labels = None if labels is None else labels.to(case.device)

    def losses() -> Iterator[torch.Tensor]:
        for batch in inputs:
            with _autocast(case):
                output = _first(forward(**batch)).float()
            yield output.square().mean() if labels is None else F.cross_entropy(output.flatten(0, -2), labels)

    def train() -> None:
        for loss in losses():
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def infer() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [_first(forward(**batch)) for batch in inputs]

    forward = model
    with Floor(model, case.device) as floor:
        if case.training:
            for loss in losses():
                loss.backward()
        else:
            infer()
    model.zero_grad()
    forward = compiled(model, case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True) if case.training else None

    def outputs() -> list[torch.Tensor]:
        if not case.training:
            return comparable(infer()) if comparable else infer()
        # The gradient of the first parameter, of the embedding, depends on all layers after it.
        first, found = next(model.parameters()), []
        for loss in losses():
            loss.backward()
            found += [loss.detach(), first.grad.clone()]
            optimizer.zero_grad()
        return found

    call = train if case.training else infer
    facts = {"parameters": count_parameters(model)}
    return Candidate(name, call, outputs, weights, items, floor=floor, facts=facts)


def compiled(model: nn.Module, case: Case) -> Callable[..., Any]:
    """The model as the case requires: eager, compiled, or with compiled layers."""
    if not case.compiled:
        return model
    layers = repeated_layers(model) if case.by_layer else []
    for layer in layers:
        layer.compile()
    return model if layers else torch.compile(model)


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of the outermost lists and sequences in which all have the same class."""
    children = list(model.children())
    is_list = isinstance(model, nn.ModuleList | nn.Sequential)
    if is_list and len(children) > 1 and len({type(child) for child in children}) == 1:
        return children if any(True for _ in model.parameters()) else []
    return [layer for child in children for layer in repeated_layers(child)]


def _autocast(case: Case) -> torch.autocast:
    is_mixed = case.training and case.dtype != torch.float32
    return torch.autocast(case.device.type, case.dtype, enabled=is_mixed)


def _first(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def _placed(value: Any, model: nn.Module, case: Case) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(case.device)
    return value.to(next(model.parameters()).dtype) if value.is_floating_point() else value


def count_parameters(model: nn.Module) -> int:
    """Number of parameters. Shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, inputs: Inputs) -> int:
    """Operations of the forward passes, by `forward_flops`, or by PyTorch's counter for other models."""
    if hasattr(model, "forward_flops"):
        shapes = [next(iter(batch.values())).shape for batch in inputs]
        targets = [batch["decoder_input_ids"].shape[1] if "decoder_input_ids" in batch else None for batch in inputs]
        is_image = model.config.image_size is not None
        return sum(
            model.forward_flops(shape[0], None if is_image else shape[1], target)
            for shape, target in zip(shapes, targets, strict=True)
        )
    with torch.no_grad(), attention_written_out(model), FlopCounterMode(display=False) as counter:
        for batch in inputs:
            model(**batch)
    return counter.get_total_flops()


@contextmanager
def attention_written_out(model: nn.Module) -> Iterator[None]:
    """Use eager attention, because PyTorch's counter does not count every fused kernel."""
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if implementation != "sdpa":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def check_agreement(candidates: Sequence[Candidate], tolerance: float) -> dict[str, float]:
    """Compare the outputs of candidates with the same weights.

    Returns:
        The relative differences by name, except for the first of each.
    """
    references: dict[str, tuple[str, list[torch.Tensor]]] = {}
    differences = {}
    for candidate in candidates:
        if candidate.weights is None:
            continue
        found = [tensor.double() for tensor in candidate.outputs()]
        if candidate.weights not in references:
            references[candidate.weights] = candidate.name, found
            continue
        name, expected = references[candidate.weights]
        difference = max(
            ((one - other).norm() / other.norm()).item() for one, other in zip(found, expected, strict=True)
        )
        if not difference <= tolerance:
            raise UserError(
                f"{candidate.name} and {name} have the same weights but differ by {difference:.2g} of the outputs' "
                f"norm, more than rounding ({tolerance:g}): their times cannot be compared."
            )
        differences[candidate.name] = difference
    return differences


@contextmanager
def number_of_threads(count: int) -> Iterator[None]:
    """Set the number of threads of PyTorch's operators. With one thread, tokenizers use one too."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with patch.dict(os.environ, {"TOKENIZERS_PARALLELISM": str(count > 1).lower()}):
            yield
    finally:
        torch.set_num_threads(before)


#: If the first round of calls takes longer, in seconds, no further round is needed to warm up.
LONG_SECONDS = 60
#: On a GPU a call is repeated for so many seconds and timed as a whole: starting it is then hidden by the call before.
REPEATED_SECONDS = 0.02


def take_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, warm_up: int = 2
) -> dict[str, list[float]]:
    """Seconds of each call in each round. The order rotates, so that no call always follows the same one.

    On a GPU, events time short calls several at a time; the last warm-up call sets how many. On a CPU, calls that take
    more than a minute together warm up once.
    """
    names, seconds = list(calls), {name: [] for name in calls}
    repeats, start = dict.fromkeys(names, 1), time.monotonic()
    for number in range(-warm_up, rounds):
        if -warm_up < number < 0 and device.type != "cuda" and time.monotonic() - start > LONG_SECONDS:
            continue
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found = _seconds(calls[name], repeats[name], device)
            if number >= 0:
                seconds[name].append(found)
            elif device.type == "cuda":
                repeats[name] = max(1, min(100, round(REPEATED_SECONDS / max(found, 1e-6))))
    return seconds


def _seconds(call: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds of one of several calls in a row."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    for _ in range(repeats):
        call()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1000 / repeats


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, interpolated."""
    if len(values) == 1:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def compare(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Milliseconds of each candidate, and the ratio of the first candidate's time to its time in the same round.

    Returns:
        By name: `milliseconds`, `ratio` (below 1: the first is faster), each with `_q1` and `_q3`, its quartiles.
    """
    first = next(iter(seconds.values()))
    summaries = {}
    for name, times in seconds.items():
        summary = {}
        ratios = [one / other for one, other in zip(first, times, strict=True)]
        for key, values in (("milliseconds", [1000 * value for value in times]), ("ratio", ratios)):
            summary[f"{key}_q1"], summary[key], summary[f"{key}_q3"] = quartiles(values)
        summaries[name] = summary
    return summaries


def peak_memory(call: Callable[[], Any], device: torch.device) -> int:
    """The peak of PyTorch's memory during a call in bytes, beyond the memory before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes a line when it starts and when it ends
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def matmul_peaks(dtype: torch.dtype, device: torch.device, size: int) -> dict[str, float]:
    """Operations per second of the fastest of many products of two square matrices, by two functions of PyTorch:
    `product` and `convolution`, which may use different libraries.

    Args:
        dtype: Type of the matrices.
        device: Device of the matrices.
        size: Most rows and columns, of 256, 512, ...; fewer if one product would take longer than two seconds.
    """

    def seconds(side: int, rounds: int) -> dict[str, list[float]]:
        one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        calls = {"product": lambda: one @ other, "convolution": lambda: F.conv1d(one[None], other[..., None])[0]}
        return take_turns(calls, rounds, device)

    peaks: dict[str, float] = {}
    side = min(256, size)
    while side <= size:
        found = seconds(side, 10)
        for name, times in found.items():
            peaks[name] = max(peaks.get(name, 0.0), 2 * side**3 / min(times))
        # A processor without instructions for the type can be a hundred times slower than in float32.
        if 8 * max(times[0] for times in found.values()) >= 2:
            break
        side *= 2
    return peaks


def measure(group: Group, case: Case, rounds: int) -> list[dict[str, Any]]:
    """One row of results for each candidate."""
    first_calls = seconds_of_first_calls(group, case) if case.compiled else {}
    differences = check_agreement(group.candidates, TOLERANCE[case.dtype])
    calls = {candidate.name: candidate.call for candidate in group.candidates}
    floors = {one.name: one.floor for one in group.candidates if one.floor and one.floor.calls}
    products = {f"products of {name}": floor.products for name, floor in floors.items()}
    copies = {f"copies of {name}": floor.copies for name, floor in floors.items()}
    times = take_turns(calls | products | copies, rounds, case.device)
    summaries = compare({name: times[name] for name in calls})
    rows = []
    for candidate in group.candidates:
        name, summary = candidate.name, summaries[candidate.name]
        seconds = summary["milliseconds"] / 1000
        row = {
            "group": group.name,
            "model": name,
            "mode": case.mode,
            "dtype": str(case.dtype).removeprefix("torch."),
            "compiled": case.compiled,
            "threads": torch.get_num_threads(),
            **group.facts,
            **summary,
            "difference": differences.get(name),
            "per_second": candidate.items / seconds if candidate.items else None,
            "peak_bytes": peak_memory(candidate.call, case.device) if candidate.is_profiled else None,
            "operations_per_second": floors[name].flops / seconds if name in floors else None,
            "compile_seconds": max(0.0, first_calls[name] - seconds) if case.compiled else None,
        }
        if name in floors:
            row |= floor_of(floors[name], times[name], times[f"products of {name}"], times[f"copies of {name}"])
        rows.append(row | candidate.facts)
    return rows


def seconds_of_first_calls(group: Group, case: Case) -> dict[str, float]:
    """Seconds of each candidate's first call, in which it is compiled, with nothing kept from earlier runs."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        return {candidate.name: _seconds(candidate.call, 1, case.device) for candidate in group.candidates}


def floor_of(
    floor: Floor, seconds: Sequence[float], products: Sequence[float], copies: Sequence[float]
) -> dict[str, float]:
    """The floor of a candidate: its products alone, and the time to pass over their operands and results once.

    Returns:
        `floor`, the share of the candidate's time, with its quartiles; both times; the numbers of products and bytes;
        and the operations per second of the fastest product.
    """
    shares = [(one + other / 2) / whole for whole, one, other in zip(seconds, products, copies, strict=True)]
    found = dict(zip(("floor_q1", "floor", "floor_q3"), quartiles(shares), strict=True))
    found |= {"products_milliseconds": 1000 * statistics.median(products)}
    found |= {"bytes_milliseconds": 1000 * statistics.median(copies) / 2}
    fastest = max(floor.fastest, floor.flops / min(products))
    return found | {"products": len(floor.calls), "bytes": floor.bytes, "fastest_product": fastest}
