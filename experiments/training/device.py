"""The one device that a run is trained on, and how it is told to compute."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def device_for_training() -> torch.device:
    """The first visible GPU, else the CPU. Many runs share many GPUs by CUDA_VISIBLE_DEVICES, one process each."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def reuse_freed_memory() -> None:
    """Let glibc keep freed blocks below 32 MB (its limit) for the next step instead of returning them to the kernel.

    Without this, fresh pages for the same activations are a third of every step on a CPU.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # not musl
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 2**25)
        libc.mallopt(trim_threshold, 2**31 - 1)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many CPU threads within the block; None or 0: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def repeatable() -> Iterator[None]:
    """On a GPU, the kernels that give the same bytes each time where there is a choice, and convolutions in float32,
    which torch otherwise rounds to TF32. On a CPU both are so anyway."""
    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for, before the first product
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), torch.backends.cudnn.allow_tf32, memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    memory.fill_uninitialized_memory = False  # a tenth of a step, for memory that nothing reads
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        torch.backends.cudnn.allow_tf32, memory.fill_uninitialized_memory = before[1:]


def replayed(network: nn.Module, images: torch.Tensor, *, half: bool) -> None:
    """Let a network on a GPU take training batches shaped like `images` by replaying CUDA graphs of its forward and
    backward pass: the same kernels without the time that Python takes to launch them, most of a step of a small
    network. In evaluation mode, and with other shapes, it is as before.

    Not for a network that does more than arithmetic, as BatchNorm that learns, or that is called twice in a step.

    half: under autocast to bfloat16.
    """
    eager: Callable = network.forward
    with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        torch.cuda.make_graphed_callables(network.train(), (images,))
    replay: Callable = network.forward
    vars(network)["forward"] = lambda batch: (replay if batch.shape == images.shape else eager)(batch)
