"""Counts what a piece of code would ask of a GPU: operations, and how often the host would wait for their results.

Every operation that torch dispatches counts, views included. The host waits where a shape or a branch depends on
values: it reads a number or a list, or takes the rows of a mask.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "repeat_interleave"}
READS |= {"_unique2", "unique_dim", "unique_consecutive"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"tolist", "cpu", "numpy"}  # methods that on a CPU dispatch nothing


class _Operations(TorchDispatchMode):
    operations = waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        masked = name in INDEXING and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
        self.operations += 1
        self.waits += masked or name in READS
        return func(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    waits = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.waits += getattr(func, "__name__", "") in COPIES
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], object]) -> tuple[int, int]:
    """(operations, waits) of a call on the CPU."""
    with _Copies() as copies, _Operations() as dispatched:
        call()
    return dispatched.operations, dispatched.waits + copies.waits


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return out
