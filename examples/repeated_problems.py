"""CCP: a loss that is given proxies, and a loop that begins anew with other proxies.

Each problem starts at the samples that the last problem's proxies cover worst, and is held near its weights.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.chance_constrained import (
    ProxyContrastiveLoss,
    clip_to_unit_ball,
    greedy_k_center,
    projection_penalty,
)
from dmlrepro.samplers import shuffled

PROXIES = 4  # of each class


def main() -> None:
    x, y, _, _ = samples()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=shuffled(len(y), 32, 60, generator).lists())
    net, loss = network(), ProxyContrastiveLoss("c2")
    proxies = nn.Parameter(torch.zeros(CLASSES, PROXIES, DIM))
    classes = torch.arange(CLASSES).repeat_interleave(PROXIES)
    optimizer = torch.optim.Adam([{"params": net.parameters(), "lr": 1e-3}, {"params": [proxies], "lr": 1e-2}])
    print(f"untrained R@1 {recall(net):.3f}")
    for problem in range(4):
        with torch.no_grad():
            pool = clip_to_unit_ball(net(x)).unflatten(0, (CLASSES, -1))  # the samples lie class by class
            start = pool[:, :1] if problem == 0 else clip_to_unit_ball(proxies)
            picks = greedy_k_center(pool, start, PROXIES)
            proxies.copy_(pool.gather(1, picks[:, :, None].expand(-1, -1, DIM)))
        anchors = [parameter.detach().clone() for parameter in net.parameters()]
        for images, labels in loader:
            value = loss(net(images), labels, ref_emb=proxies.flatten(0, 1), ref_labels=classes)
            if problem > 0:
                value = value + projection_penalty(net.parameters(), anchors, 2e-4)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        print(f"problem {problem + 1} R@1 {recall(net):.3f}")


if __name__ == "__main__":
    main()
