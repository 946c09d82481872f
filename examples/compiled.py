"""torch.compile and autocast: network and loss compiled, the network in bfloat16, the loss in float32 as it wants.

python examples/compiled.py [BACKEND]     inductor, which needs a C++ compiler; aot_eager does without
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.mean_field import MeanFieldClassWiseMultiSimilarityLoss
from dmlrepro.samplers import m_per_class


def main(backend: str = "inductor") -> None:
    x, y, _, _ = samples()
    batches = m_per_class(y, 32, 4, num_batches=150, generator=torch.Generator().manual_seed(0))
    net, loss = network(), MeanFieldClassWiseMultiSimilarityLoss(CLASSES, DIM)
    optimizer = torch.optim.AdamW([{"params": net.parameters()}, *loss.parameter_groups(lr=1e-3)], lr=1e-3)
    fast_net, fast_loss = torch.compile(net, backend=backend), torch.compile(loss, fullgraph=True, backend=backend)
    print(f"untrained R@1 {recall(net):.3f}")
    for images, labels in DataLoader(TensorDataset(x, y), batch_sampler=batches.lists()):
        with torch.autocast("cpu", torch.bfloat16):
            value = fast_loss(fast_net(images), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    print(f"compiled by {backend} R@1 {recall(net):.3f}, loss in {value.dtype}")


if __name__ == "__main__":
    main(*sys.argv[1:])
