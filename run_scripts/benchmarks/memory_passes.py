"""Count the bytes that a layer reads and writes besides its matrix products.

    python -m tokenmixers.run_scripts.benchmarks.memory_passes
    python -m tokenmixers.run_scripts.benchmarks.memory_passes --models gmlp-base --masks none --operators

Every operator of PyTorch except views passes once over its operands and its result. The bytes of operators other than
matrix products are passes that a model could avoid; on fast processors they take most of a step. They depend on the
code and not on the machine, and nothing is timed. The bytes of a layer are those of a model with two layers minus
those of a model with one, which includes the additions of gradients at the residuals.
"""

from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModel, PreTrainedConfig

from ...modeling.kernels import use_kernels
from ..base.arguments import parse_arguments
from ..base.reporting import print_table
from .model_comparisons import shipped_config


#: The matrix products and convolutions of PyTorch; attention kernels are products with all that is inside.
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
#: Operators that reserve memory, or only look at it.
WITHOUT_BYTES = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("detach", "alias", "_unsafe_view"),
}
#: Operators that write their first operand without reading it.
WRITE_ONLY = {"fill_", "zero_", "copy_", "new_zeros"}

MODELS = (
    "gmlp-base",
    "amlp-base",
    "synthesizer-random",
    "synthesizer-dense",
    "synthesizer-vanilla",
    "mlp-mixer-table3",
)
MODES = ("inference", "training")
#: Name -> type of the weights, and whether autocast computes in bfloat16.
PRECISIONS = {
    "float32": (torch.float32, False),
    "autocast": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
}
MASKS = ("none", "ones", "padding")


class Bytes(NamedTuple):
    """Bytes read and written, by name of the operator, and the number of operators."""

    products: Counter[str]
    others: Counter[str]
    operators: Counter[str]


class ByteCounter(TorchDispatchMode):
    """Counts operands and results of all operators in the context, including backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = Bytes(Counter(), Counter(), Counter())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in WITHOUT_BYTES:
            return result
        operands = tree_leaves((args[name in WRITE_ONLY :], kwargs))
        is_product = name in PRODUCTS or "scaled_dot_product" in name
        kind = self.bytes.products if is_product else self.bytes.others
        kind[name] += sum(map(_bytes, operands)) + sum(map(_bytes, tree_leaves(result)))
        self.bytes.operators[name] += 1
        return result


def _bytes(value: Any) -> int:
    """Bytes of a tensor. Expanded dimensions count once."""
    if not isinstance(value, torch.Tensor):
        return 0
    dimensions = zip(value.shape, value.stride(), strict=True)
    return value.element_size() * torch.Size(size if stride else 1 for size, stride in dimensions).numel()


def encoder_config(name: str) -> PreTrainedConfig:
    """A shipped configuration as an encoder, without dropout and with few embeddings."""
    changes = {"is_encoder_decoder": False} if name.startswith("synthesizer") else {}
    return shipped_config(name, vocab_size=64, **changes)


def count_layer(
    config: PreTrainedConfig, mode: str, precision: str, mask: str, batch: int = 8, length: int = 128
) -> Bytes:
    """Bytes that a layer reads and writes.

    Args:
        config: Configuration of an encoder for text.
        mode: `"inference"`, or `"training"`: a forward and a backward pass, without the optimizer.
        precision: A key of `PRECISIONS`.
        mask: `"none"`; `"ones"`, an attention mask without padding; `"padding"`, with one row of half the length.
        batch: Number of rows.
        length: Tokens in a row.
    """
    dtype, autocast = PRECISIONS[precision]
    training = mode == "training"
    inputs = {"input_ids": torch.randint(3, config.vocab_size, (batch, length))}
    if mask != "none":
        inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
    if mask == "padding":
        inputs["attention_mask"][0, length // 2 :] = 0
    counts = []
    for layers in (1, 2):
        changed = deepcopy(config)
        changed.num_hidden_layers = layers
        model = AutoModel.from_config(changed).to(dtype).train(training)
        use_kernels(model, enabled=False)
        with ByteCounter() as counter, torch.set_grad_enabled(training):
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                hidden_states = model(**inputs).last_hidden_state
            if training:
                hidden_states.sum().backward()
        counts.append(counter.bytes)
    return Bytes(*(two - one for one, two in zip(*counts, strict=True)))


@dataclass
class PassesArguments:
    """What is counted."""

    models: list[str] = field(
        default_factory=lambda: list(MODELS), metadata={"help": "Shipped configurations.", "choices": list(MODELS)}
    )
    masks: list[str] = field(
        default_factory=lambda: list(MASKS),
        metadata={"help": "ones is a mask without padding.", "choices": list(MASKS)},
    )
    operators: bool = field(default=False, metadata={"help": "List the operators with their bytes."})


def main(argv: list[str] | None = None) -> dict[tuple[str, ...], Bytes]:
    """Entry point; prints a table of megabytes and returns the counts by model, mode, precision and mask."""
    (arguments,) = parse_arguments((PassesArguments,), argv)
    counts: dict[tuple[str, ...], Bytes] = {}
    for case in product(arguments.models, MODES, PRECISIONS, arguments.masks):
        counts[case] = count_layer(encoder_config(case[0]), *case[1:])
        if arguments.operators:
            rows = [(operator, _megabytes(size)) for operator, size in counts[case].others.most_common()]
            print_table((", ".join(case), "MB"), rows)
    rows = [
        (*case, _megabytes(found.products.total()), _megabytes(found.others.total()), str(found.operators.total()))
        for case, found in counts.items()
    ]
    print_table(("model", "mode", "precision", "mask", "products' MB", "other MB", "operators"), rows)
    return counts


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


if __name__ == "__main__":
    main()
