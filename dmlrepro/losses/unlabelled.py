"""Losses of unsupervised baselines: instance discrimination, and contextual similarity in the manner of STML.

Papers     Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020 (NT-Xent);
           Kim et al., "Self-Taught Metric Learning without Labels", CVPR 2022 (STML).
Equations  STML, Sec. 3: pairwise similarity, contextual similarity of k-reciprocal neighbours, relaxed contrastive
           loss, written from the published description.
Deviations NT-Xent is pytorch-metric-learning's. STML's second embedding layer and its self-distillation are left out:
           the momentum encoder's embeddings alone supervise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.extras import require
from dmlrepro.losses.checks import _TwoViews, _WholeBatch, check_batch, check_pair, check_positive, check_sizes, printed
from dmlrepro.losses.recommended import rate_of_the_network


class InstanceLoss(_WholeBatch):
    """pytorch-metric-learning's NT-Xent with inputs checked, in float32 or wider; see `nt_xent`."""

    def __init__(self, num_classes: int, embedding_size: int, temperature: float):
        require("pytorch-metric-learning")
        from pytorch_metric_learning.losses import NTXentLoss

        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_positive(temperature=temperature)
        self.loss, self.sizes = NTXentLoss(temperature), (num_classes, embedding_size)

    parameter_groups = rate_of_the_network

    def of_batch(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, *self.sizes)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.loss(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), labels)

    def extra_repr(self) -> str:
        return printed(self, num_classes=self.sizes[0], embedding_size=self.sizes[1], temperature=self.loss.temperature)


def nt_xent(num_classes: int, embedding_size: int, *, temperature: float = 0.1) -> nn.Module:
    """NT-Xent: every view finds the other views of its image among all images of the batch; labels say which image."""
    return InstanceLoss(num_classes, embedding_size, temperature)


def distances(points: Tensor) -> Tensor:
    """Euclidean distances (N, N) of unit vectors, 0 with a zero gradient where they coincide."""
    squared = (2 - 2 * points @ points.T).clamp_min(0)
    apart = squared > 1e-14
    return torch.where(apart, squared, 1).sqrt() * apart


def contextual_similarity(points: Tensor, k: int = 10, sigma: float = 3.0) -> Tensor:
    """w (N, N) in [0, 1], symmetric: the mean of exp(-d^2 / sigma) and of the overlap of k-reciprocal neighbours.

    The overlap |R(i) & R(j)| / |R(i)| counts where j is a reciprocal neighbour of i; it is averaged over the k / 2
    nearest neighbours of i, then over both directions. A point is among its own neighbours. points (N, D) unit, N >= k.
    """
    apart = distances(points)
    order = apart.argsort(dim=1, stable=True)[:, :k]
    near = torch.zeros_like(apart).scatter_(1, order, 1.0)
    mutual = near * near.T
    overlap = mutual * (mutual @ mutual.T) / mutual.sum(1, keepdim=True).clamp_min(1)
    context = overlap[order[:, : max(k // 2, 1)]].mean(1)
    return ((-apart.square() / sigma).exp() + (context + context.T) / 2) / 2


class ContextualSimilarityLoss(_TwoViews):
    """Relaxed contrastive loss on the contextual similarity that a momentum encoder sees.

    Each w_ij pulls by w d^2 and pushes by (1 - w) max(0, delta - d)^2, d the distance over the mean distance of the
    row; divided by the number of points. Called with embeddings and momentum embeddings (B, D), both normalised here.

    Args:
        embedding_size: D.
        k: neighbours of a point, itself counted; lowered to the batch where that is smaller.
        sigma: width of the pairwise similarity.
        delta: margin, in mean distances.
    """

    def __init__(self, embedding_size: int, *, k: int = 10, sigma: float = 3.0, delta: float = 1.0):
        super().__init__()
        check_sizes(embedding_size=embedding_size, k=k)
        check_positive(sigma=sigma, delta=delta)
        self.embedding_size, self.k, self.sigma, self.delta = embedding_size, k, sigma, delta

    parameter_groups = rate_of_the_network

    def extra_repr(self) -> str:
        return printed(self)

    def terms(self, embeddings: Tensor, momentum_embeddings: Tensor) -> dict[str, Tensor]:
        """The parts that pull and push."""
        check_pair(embeddings, momentum_embeddings, self.embedding_size)
        with torch.autocast(embeddings.device.type, enabled=False):
            points = F.normalize(embeddings.double(), dim=1)
            with torch.no_grad():
                targets = F.normalize(momentum_embeddings.double(), dim=1)
                w = contextual_similarity(targets, min(self.k, targets.shape[0]), self.sigma)
            apart = distances(points)
            apart = apart / apart.mean(1, keepdim=True).clamp_min(1e-12)
            others = 1 - torch.eye(points.shape[0], dtype=w.dtype, device=w.device)
            pull = (w * apart.square()).sum() / points.shape[0]
            push = (others * (1 - w) * (self.delta - apart).clamp_min(0).square()).sum() / points.shape[0]
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        return {"pull": pull.to(kind), "push": push.to(kind)}
