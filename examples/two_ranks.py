"""Two processes train what one would: each embeds half of a batch, and every one computes the loss of the whole batch.

`gather` brings the embeddings of all ranks to each, with a gradient that DistributedDataParallel, around both network
and loss, averages to that of one process: that of the embeddings is complete on every rank, so it is scaled by their
number, by which DistributedDataParallel divides. A rank holds its `share` of the batch; where each has a loader of its
own, their labels are gathered in the same way. A loss that draws samples needs one `seed` on every rank.

`dmlrepro.pml.DistributedLossWrapper` gathers by itself.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from data import CLASSES, DIM, network, samples
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.losses.potential_field import PotentialFieldLoss
from dmlrepro.pml import DistributedLossWrapper
from dmlrepro.samplers import m_per_class

RANKS = 2
LOSSES = {
    "PFML": lambda: PotentialFieldLoss(CLASSES, DIM, proxies_per_class=3, reduction="mean"),
    "EL-nivMF": lambda: ProbabilisticProxyLoss(CLASSES, DIM, seed=0),
    "PFML, wrapped": lambda: PotentialFieldLoss(CLASSES, DIM, proxies_per_class=3, reduction="mean"),
}


def share(size: int, rank: int | None = None) -> slice:
    """A rank's contiguous part of `size` items; the parts of all ranks differ by at most one item. None: this rank."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    part = rank if rank is not None else dist.get_rank() if ranks > 1 else 0
    return slice(size * part // ranks, size * (part + 1) // ranks)


def gather(local: Tensor, size: int) -> Tensor:
    """(size, ...) from each rank's `share(size)` of the rows, differentiable. All go on to compute the same scalar."""
    return Gather.apply(local, size) if dist.is_initialized() else local


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local: Tensor, size: int) -> Tensor:
        ctx.size = size
        lengths = [len(range(size)[share(size, rank)]) for rank in range(dist.get_world_size())]
        if len(local) != lengths[dist.get_rank()]:
            raise ValueError(f"rank {dist.get_rank()} has {len(local)} of {size} rows, not {lengths[dist.get_rank()]}")
        padded = local.new_zeros(max(lengths), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths)])

    @staticmethod
    def backward(ctx, upstream: Tensor):
        return dist.get_world_size() * upstream[share(ctx.size)], None


def trained(name: str) -> list[Tensor]:
    """The parameters of network and loss after ten steps, in float64 so that rounding hides nothing."""
    x, y, _, _ = samples()
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    net = network().double()
    optimizer = torch.optim.SGD([{"params": net.parameters(), "lr": 0.1}, {"params": loss.parameters(), "lr": 0.1}])
    embed, criterion = net, loss
    if dist.is_initialized():
        embed, criterion = DistributedDataParallel(net), DistributedDataParallel(loss)
        if name.endswith("wrapped"):
            criterion = DistributedLossWrapper(criterion)
    for batch in m_per_class(y, 32, 4, num_batches=10, generator=torch.Generator().manual_seed(0)):
        mine = batch[share(len(batch))]
        embeddings, labels = embed(x[mine].double()), y[mine]
        if not name.endswith("wrapped"):
            embeddings, labels = gather(embeddings, len(batch)), gather(labels, len(batch))
        optimizer.zero_grad()
        criterion(embeddings, labels).backward()
        optimizer.step()
    return [parameter.detach() for module in (net, loss) for parameter in module.parameters()]


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    torch.save({name: trained(name) for name in LOSSES}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder,), nprocs=RANKS)
        ranks = [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]
    for name in LOSSES:
        one, start = trained(name), list(network().double().parameters())
        apart = max((a - b).abs().max().item() for two in ranks for a, b in zip(one, two[name], strict=True))
        moved = max((a - b).abs().max().item() for a, b in zip(one, start))
        print(f"{name}: two ranks differ from one by {apart:.1e}, training moved the network by {moved:.1e}")


if __name__ == "__main__":
    main()
