"""PLM: no labels. A momentum encoder says how similar the images of a batch are, batches are groups of neighbours."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

from data import DIM, network, recall, samples
from dmlrepro.losses.piecewise_linear import PiecewiseLinearManifoldLoss
from dmlrepro.samplers import neighbour_groups

NOISE = 0.3  # neighbours are all that this loss knows, and must say something of the class


def main() -> None:
    x, _, _, _ = samples(NOISE)
    generator = torch.Generator().manual_seed(0)
    net, loss = network(), PiecewiseLinearManifoldLoss(DIM, num_proxies=20)
    teacher = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam([{"params": net.parameters()}, *loss.parameter_groups(lr=1e-3)], lr=1e-3)
    print(f"untrained R@1 {recall(net, NOISE):.3f}")
    for epoch in range(4):
        with torch.no_grad():
            near = torch.cdist(net(x), net(x)).topk(5, largest=False).indices  # an image and four neighbours
        batches = neighbour_groups(near, batch_size=40, num_batches=15, generator=generator)
        for (images,) in DataLoader(TensorDataset(x), batch_sampler=batches.lists()):
            value = loss(net(images), teacher(images))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
                    slow.lerp_(fast, 0.05)
        print(f"epoch {epoch + 1} R@1 {recall(net, NOISE):.3f}")


if __name__ == "__main__":
    main()
