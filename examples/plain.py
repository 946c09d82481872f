"""A plain PyTorch loop with the losses of three papers; their proxies are parameters beside the network's.

The other two papers change the loop: see repeated_problems.py and without_labels.py.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.mean_field import MeanFieldClassWiseMultiSimilarityLoss
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.losses.potential_field import PotentialFieldLoss
from dmlrepro.losses.recommended import clip_gradients
from dmlrepro.samplers import m_per_class

LOSSES = {
    "PFML": lambda: PotentialFieldLoss(CLASSES, DIM, proxies_per_class=3),
    "EL-nivMF": lambda: ProbabilisticProxyLoss(CLASSES, DIM),
    "MFCWMS": lambda: MeanFieldClassWiseMultiSimilarityLoss(CLASSES, DIM),
}


def main() -> None:
    x, y, _, _ = samples()
    generator = torch.Generator().manual_seed(0)
    batches = m_per_class(y, batch_size=32, samples_per_class=4, num_batches=50, generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=batches.lists())
    print(f"untrained R@1 {recall(network()):.3f}")
    for name, build in LOSSES.items():
        net, loss = network(), build()
        optimizer = torch.optim.AdamW([{"params": net.parameters()}, *loss.parameter_groups(lr=1e-3)], lr=1e-3)
        for _ in range(4):
            for images, labels in loader:
                value = loss(net(images), labels)
                optimizer.zero_grad()
                value.backward()
                clip_gradients(optimizer)
                optimizer.step()
        print(f"{name} R@1 {recall(net):.3f}")


if __name__ == "__main__":
    main()
