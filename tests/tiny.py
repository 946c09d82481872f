"""A run of a second, from which the tests of training derive theirs, and the module of a reader's loss."""

from pathlib import Path

import pytest

from experiments.training import loop
from experiments.training.spec import RunSpec

TINY = RunSpec(
    dataset="glyphs",
    images_per_class=4,
    embedding_size=8,
    loss="baselines.proxy_nca_pp",
    steps=4,
    batch_size=16,
    lr=1e-3,
    threads=1,
)

# without labels: two views in groups of neighbours, a network with its teacher
PLM = TINY.replace(
    image_size=32,
    views=2,
    neighbours=5,
    batch_size=20,
    loss="piecewise_linear.PiecewiseLinearManifoldLoss",
    loss_options={"num_proxies": 6},
    algorithm="momentum_encoder",
    algorithm_options={"momentum": 0.9},
)

# a copy of a rival, by a reader
ANCHORS = """
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import nn

class Anchors(nn.Module):
    def __init__(self, num_classes, embedding_size, margin=0.1, alpha=32.0):
        super().__init__()
        self.loss = ProxyAnchorLoss(num_classes, embedding_size, margin=margin, alpha=alpha)

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels)
"""


def resumed(spec: RunSpec, checkpoint: Path, step: int) -> loop.Outcome:
    """What training gives that is interrupted before a step, with a checkpoint after each, and started again."""
    train_step = loop.train_step

    def dies(state, *batch):
        if state.step == step:
            raise KeyboardInterrupt
        return train_step(state, *batch)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1)
        patch.setattr(loop, "train_step", dies)
        loop.train(spec, checkpoint=checkpoint)
    return loop.train(spec, checkpoint=checkpoint)
