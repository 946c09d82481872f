"""One run on several GPUs: torch's DistributedDataParallel under torchrun.

N ranks train what one rank would. Each takes its slice of the same global batch; the embeddings are gathered with
their gradient, and every rank computes the identical loss of the whole batch. That loss is a function of the gathered
embeddings, so its gradient with respect to the local slice is complete on each rank, and so are the gradients of the
proxies: the first is scaled by the number of ranks, because DistributedDataParallel divides by it, and the second is
averaged, once. BatchNorm with the statistics of a slice would break the equality: it is frozen, or synchronised.

Without a process group every function here does nothing, so the training loop has one form.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Value = TypeVar("Value")
Module = TypeVar("Module", bound=nn.Module)


def device_for_training() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def ranks_for(device_type: str) -> int:
    """How many processes train a run: DMLREPRO_RANKS, else one per visible GPU.

    To train one run per GPU instead, show each process a single one with CUDA_VISIBLE_DEVICES.
    """
    ranks = os.environ.get("DMLREPRO_RANKS", str(torch.cuda.device_count()) if device_type == "cuda" else "1")
    if not ranks.isdigit() or int(ranks) < 1:
        raise ValueError(f"DMLREPRO_RANKS must be a positive number of processes, got {ranks!r}")
    if device_type == "cuda" and int(ranks) > torch.cuda.device_count():
        raise ValueError(f"DMLREPRO_RANKS is {ranks}, but only {torch.cuda.device_count()} GPUs are visible")
    return int(ranks)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(size: int, of_rank: int | None = None) -> slice:
    """This rank's contiguous part of `size` items; the parts of all ranks differ by at most one item."""
    part = rank() if of_rank is None else of_rank
    return slice(size * part // world_size(), size * (part + 1) // world_size())


def gather(local: Tensor, size: int) -> Tensor:
    """(size, ...) from each rank's `share(size)` of the rows, differentiable: see the head of this file.

    Every rank must go on to compute the same scalar from it.
    """
    return _Gather.apply(local, size) if world_size() > 1 else local


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, size: int) -> Tensor:
        ctx.size = size
        lengths = [len(range(size)[share(size, other)]) for other in range(world_size())]
        if len(local) != lengths[rank()]:
            raise ValueError(f"rank {rank()} holds {len(local)} of {size} rows, expected {lengths[rank()]}")
        padded = local.new_zeros(max(lengths), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths)])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor):
        return world_size() * upstream[share(ctx.size)], None


def parallel(network: nn.Module) -> nn.Module:
    """The network with its gradients averaged over the ranks.

    What requires a gradient must not change afterwards: wrap again when a warm-up ends.
    """
    if world_size() == 1 or not any(parameter.requires_grad for parameter in network.parameters()):
        return network
    return nn.parallel.DistributedDataParallel(network, broadcast_buffers=False)


def average_gradients(module: nn.Module) -> None:
    """Average the gradients of a loss's parameters over the ranks, in one message.

    They are equal up to the order of summation; the average keeps them so bit for bit.
    """
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if gradients:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= world_size()
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))


def from_first(compute: Callable[[], Value]) -> Value:
    """What rank 0 computes, on every rank."""
    if world_size() == 1:
        return compute()
    box: list[Any] = [compute() if rank() == 0 else None]
    dist.broadcast_object_list(box)
    return box[0]


@contextmanager
def first_rank_first() -> Iterator[None]:
    """Rank 0 runs the block, then the others do: they find the files it has decoded or downloaded."""
    if world_size() > 1 and rank() > 0:
        dist.barrier()
    yield
    if world_size() > 1 and rank() == 0:
        dist.barrier()


def synchronised_batchnorm(network: Module, device: torch.device) -> Module:
    """BatchNorm over the whole batch instead of a rank's slice; torch has it on GPUs only."""
    if world_size() == 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules()):
        return network
    if device.type != "cuda":
        raise ValueError("freeze_batchnorm=False on several ranks needs GPUs: BatchNorm is synchronised only there")
    from timm.layers import convert_sync_batchnorm  # torch's own drops the activation of timm's BatchNormAct2d

    return convert_sync_batchnorm(network)


def launch(identity: dict, spec: dict, ranks: int) -> None:
    """Train a run, see `keys.identity_of`, into the cache with `ranks` processes.

    Raises:
        FloatingPointError: training diverged, as `loop.train` says it.
        torch.OutOfMemoryError: a rank's GPU was too small.
        RuntimeError: anything else, with the end of the messages of the rank that failed first.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "experiments.training.worker", *map(json.dumps, (identity, spec, os.getpid()))]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            _, messages = process.communicate()
        except BaseException:  # torchrun ends its workers when asked to, not when killed
            process.terminate()
            raise
    if process.returncode:
        # the end of torchrun's summary: the traceback of the first rank that failed
        cause = messages.rpartition("Root Cause")[2]
        for kind in (FloatingPointError, torch.OutOfMemoryError):
            _, raised, reason = cause.rpartition(f"{kind.__name__}: ")
            if raised:
                raise kind(reason.partition("\n")[0])
        raise RuntimeError(f"training on {ranks} processes failed: {cause[-4000:]}")
