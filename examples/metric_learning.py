"""pytorch-metric-learning: its trainer, a sum of losses, and its memory of past batches, with our losses."""

import logging

import torch
from pytorch_metric_learning import losses, miners, samplers, trainers
from torch import nn
from torch.utils.data import TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.chance_constrained import ProxyContrastiveLoss
from dmlrepro.losses.mean_field import MeanFieldContrastiveLoss
from dmlrepro.losses.potential_field import PotentialFieldLoss
from dmlrepro.losses.recommended import clip_gradients
from dmlrepro.pml import CrossBatchMemory


def trained(loss: nn.Module, groups: list[dict]) -> nn.Module:
    """The network after 200 steps of MetricLossOnly."""
    x, y, _, _ = samples()
    net = network()
    optimizers = {"trunk_optimizer": torch.optim.Adam(net.parameters(), lr=1e-3)}
    clippers = {}
    if groups:
        optimizers["metric_loss_optimizer"] = torch.optim.Adam(groups)
        clippers["metric_loss_grad_clipper"] = lambda: clip_gradients(optimizers["metric_loss_optimizer"])
    trainer = trainers.MetricLossOnly(
        models={"trunk": net},
        optimizers=optimizers,
        batch_size=32,
        loss_funcs={"metric_loss": loss},
        gradient_clippers=clippers,
        dataset=TensorDataset(x, y),
        sampler=samplers.MPerClassSampler(y, m=4, length_before_new_iter=3200),
        iterations_per_epoch=100,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
    )
    trainer.train(num_epochs=2)
    return net


def main() -> None:
    logging.getLogger("PML").setLevel(logging.ERROR)  # it notes which of its options are not used
    print(f"untrained R@1 {recall(network()):.3f}")
    field = PotentialFieldLoss(CLASSES, DIM, proxies_per_class=3)
    print(f"MetricLossOnly R@1 {recall(trained(field, field.parameter_groups(1e-3))):.3f}")
    means = MeanFieldContrastiveLoss(CLASSES, DIM)
    both = losses.MultipleLosses(
        [means, losses.MultiSimilarityLoss()], miners=[None, miners.MultiSimilarityMiner()], weights=[1.0, 0.5]
    )
    print(f"MultipleLosses R@1 {recall(trained(both, means.parameter_groups(1e-3))):.3f}")
    memory = CrossBatchMemory(ProxyContrastiveLoss("c2"), DIM, memory_size=128)
    print(f"CrossBatchMemory R@1 {recall(trained(memory, [])):.3f}")


if __name__ == "__main__":
    main()
