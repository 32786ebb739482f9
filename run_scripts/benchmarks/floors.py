"""The floor of a model's time: its matrix products, and one pass over what they read and write."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


def _linear(inputs: torch.Tensor, *args: Any, out_val: torch.Tensor, **kwargs: Any) -> int:
    return 2 * out_val.numel() * inputs.shape[-1]


#: Operations of what PyTorch's counter does not know: attention of CPUs, and the linear layers of our kernels.
OTHER_PRODUCTS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.mkldnn._linear_pointwise: _linear,
}


class Floor(TorchDispatchMode):
    """Records the matrix products of the code inside, forward and backward, to repeat them on their own.

    It keeps one tensor per shape and the weights themselves, which the repeated products read from memory like the
    model. Fused attention counts as a product.
    """

    def __init__(self, model: nn.Module, device: torch.device):
        super().__init__()
        self.device = device
        self.weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.kept: dict[Any, torch.Tensor] = {}
        self.calls: list[tuple[Callable, Any, Any, int]] = []
        """Operator, operands, keyword arguments and number of operations of each product."""
        self.tensors: Counter[int] = Counter()
        """How many operands and results have this size in bytes; each counts once, however many products read it."""
        self.fastest: float = 0.0
        """Operations per second of the fastest product so far, on a CPU."""
        self._seen: set[StorageWeakRef] = set()
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        count = OTHER_PRODUCTS.get(func.overloadpacket) or flop_registry.get(func.overloadpacket)
        if count is None:
            with self:  # in inference mode, operators such as `linear` come before they are taken apart
                result = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        result = func(*args, **kwargs)
        for tensor in tree_leaves((args, kwargs, result)):
            self._count_bytes(tensor)
        flops = count(*args, **kwargs, out_val=result)
        self.calls.append((func, tree_map(self._keep, args), tree_map(self._keep, kwargs), flops))
        return result

    def _is_activation(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and not value.is_mkldnn
            and value.untyped_storage().data_ptr() not in self.weights
        )

    def _count_bytes(self, value: Any) -> None:
        """Count a tensor, shared memory once. Weights are not counted: the products already read them."""
        if not self._is_activation(value) or not value.numel():
            return
        storage = value.untyped_storage()
        known = StorageWeakRef(storage)  # of memory that is freed and used again it tells the difference
        if known not in self._seen:
            self._seen.add(known)
            self.tensors[min(value.numel() * value.element_size(), storage.nbytes())] += 1

    def _keep(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()  # from the graph, with all that this would hold
        if not self._is_activation(value):
            return value
        return self.kept.setdefault((value.shape, value.stride(), value.dtype), value)

    @torch.inference_mode()
    def products(self) -> None:
        """All products, one after another."""
        for func, args, kwargs, flops in self.calls:
            start = time.perf_counter()
            func(*args, **kwargs)
            if self.device.type == "cpu":  # others only start it here
                self.fastest = max(self.fastest, flops / max(time.perf_counter() - start, 1e-9))

    @property
    def flops(self) -> int:
        """Operations of all products."""
        return sum(flops for *_, flops in self.calls)

    @property
    def bytes(self) -> int:
        """Bytes of all operands and results except weights."""
        return sum(size * count for size, count in self.tensors.items())

    def copies(self) -> None:
        """Copy every operand and result, which takes twice the time of one pass."""
        for size, count in self.tensors.items():
            if size not in self._copies:
                self._copies[size] = tuple(torch.ones(size, dtype=torch.uint8, device=self.device) for _ in range(2))
            source, target = self._copies[size]
            for _ in range(count):
                target.copy_(source)
