"""Pseudo-labels: groups of embeddings that stand for classes where there are no labels. Pure functions of tensors."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro.extras import require
from dmlrepro.retrieval import nearest


def kmeans(embeddings: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Cluster numbers (N,) of the directions of embeddings (N, D), as DeepCluster has them."""
    require("scikit-learn", "sklearn")
    from sklearn.cluster import KMeans

    return torch.from_numpy(KMeans(clusters, n_init=1, random_state=seed).fit_predict(_unit(embeddings))).long()


def hierarchical(embeddings: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Cluster numbers (N,) by Ward's agglomeration of the directions, as UHML's pseudo-labels but not hyperbolic; the
    seed is for callers that take any of these functions."""
    require("scikit-learn", "sklearn")
    from sklearn.cluster import AgglomerativeClustering

    return torch.from_numpy(AgglomerativeClustering(clusters).fit_predict(_unit(embeddings))).long()


def random_walk(embeddings: Tensor, clusters: int, seed: int = 0, k: int = 10) -> Tensor:
    """Cluster numbers (N,): each point joins the mode of the graph of neighbours that a random walk reaches most often.

    In the manner of MOM (Iscen et al., CVPR 2018): modes are the points whose share of the walk's stationary
    distribution is largest among their k neighbours, the largest `clusters` of them; where there are fewer, the points
    of largest share follow. Nothing is drawn. The graph is dense: N^2 numbers, N^3 / 3 multiplications.
    """
    weight, near = _affinity(embeddings, k).sum(1), nearest(embeddings, k)
    is_mode = weight >= weight[near].amax(1)
    modes = (weight + is_mode * 2 * weight.max()).argsort(descending=True, stable=True)[:clusters]
    starts = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)[:, modes]
    labels = torch.cholesky_solve(starts, _walk(embeddings, k, 0.99)).argmax(1)
    labels[modes] = torch.arange(len(modes), device=labels.device)
    return labels.cpu()


def random_walk_similarity(embeddings: Tensor, k: int = 10, alpha: float = 0.99) -> Tensor:
    """(I - alpha S)^-1 (N, N): where walks end that stop with probability 1 - alpha after each step.

    S is the symmetrically normalised graph of mutual neighbours among the k nearest, weighted by cosine cubed.
    """
    return torch.cholesky_inverse(_walk(embeddings, k, alpha))


def _walk(embeddings: Tensor, k: int, alpha: float) -> Tensor:
    """The Cholesky factor of I - alpha S."""
    affinity = _affinity(embeddings, k)
    scale = affinity.sum(1).clamp_min(1e-12).rsqrt()
    graph = scale[:, None] * affinity * scale
    return torch.linalg.cholesky(torch.eye(len(graph), dtype=graph.dtype, device=graph.device) - alpha * graph)


def _affinity(embeddings: Tensor, k: int) -> Tensor:
    unit = F.normalize(embeddings.double(), dim=1)
    chosen = torch.zeros(len(unit), len(unit), dtype=unit.dtype, device=unit.device)
    chosen.scatter_(1, nearest(embeddings, k).to(unit.device), 1.0)
    return (unit @ unit.T).clamp_min(0) ** 3 * chosen * chosen.T


def _unit(embeddings: Tensor) -> np.ndarray:
    return F.normalize(embeddings.double(), dim=1).float().cpu().numpy()
