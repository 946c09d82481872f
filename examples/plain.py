"""A plain PyTorch loop with the losses of three papers; their proxies are parameters beside the network's.

The other two papers change the loop: see repeated_problems.py and without_labels.py.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.mean_field import MeanFieldClassWiseMultiSimilarityLoss
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.losses.potential_field import PotentialFieldLoss
from dmlrepro.samplers import m_per_class

# How to build the loss, the learning rate of its parameters, and at which value their gradients are clipped.
LOSSES = {
    "PFML": (lambda: PotentialFieldLoss(CLASSES, DIM, proxies_per_class=3), 1e-2, 0.01),
    "EL-nivMF": (lambda: ProbabilisticProxyLoss(CLASSES, DIM, embedding_scale=30.0), 1e-1, 1e6),
    "MFCWMS": (lambda: MeanFieldClassWiseMultiSimilarityLoss(CLASSES, DIM), 2e-1, 1e6),
}


def main() -> None:
    x, y, _, _ = samples()
    generator = torch.Generator().manual_seed(0)
    batches = m_per_class(y, batch_size=32, samples_per_class=4, num_batches=50, generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=batches.lists())
    print(f"untrained R@1 {recall(network()):.3f}")
    for name, (build, lr, clip) in LOSSES.items():
        net, loss = network(), build()
        rates = [{"params": net.parameters(), "lr": 1e-3}, {"params": loss.parameters(), "lr": lr}]
        optimizer = torch.optim.AdamW(rates, weight_decay=0.0)
        for _ in range(4):
            for images, labels in loader:
                value = loss(net(images), labels)
                optimizer.zero_grad()
                value.backward()
                torch.nn.utils.clip_grad_value_(loss.parameters(), clip)
                optimizer.step()
        print(f"{name} R@1 {recall(net):.3f}")


if __name__ == "__main__":
    main()
