"""Training without labels on pseudo-labels that are found anew from the network's embeddings before every epoch.

Papers     Caron et al., "Deep Clustering for Unsupervised Learning of Visual Features", ECCV 2018 (k-means); Yan
           et al., "Unsupervised Hyperbolic Metric Learning", CVPR 2021 (hierarchical); Iscen et al., "Mining on
           Manifolds", CVPR 2018 (random walk); instance discrimination, where every image is a class.
Deviations Cluster numbers mean nothing from epoch to epoch, so the proxies of a loss that has them go to the means of
           the new clusters; DeepCluster draws a new classifier. The optimiser keeps its moments.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dmlrepro.extras import require
from dmlrepro.retrieval import nearest
from experiments.networks.backbones import Network
from experiments.training import batches, inference
from experiments.training.algorithms import supervised
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec


class Options(supervised.Options):
    labels: Literal["instances", "kmeans", "hierarchical", "random_walk"] = "instances"  # how clusters are found
    clusters: Annotated[int, Field(ge=2)] = 100  # how many; at most the number of training images


class Algorithm(supervised.Algorithm):
    """loss(embeddings, pseudo-labels)."""

    from_labels = False
    checkpointed = ("neighbours", "pseudo")

    def __init__(self, spec: RunSpec, task: batches.Task, network: Network, options: Any):
        images, clusters = len(task.train), options.clusters
        if options.labels != "instances" and clusters > images:
            raise ValueError(f"clusters must be at most {images}, the training images, got {clusters}")
        task.num_classes = images if options.labels == "instances" else clusters
        super().__init__(spec, task, network, options)
        self.pseudo = torch.arange(images, device=next(network.parameters()).device)

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.network(images), self.pseudo[labels])}

    def before_epoch(self, epoch: int) -> None:
        super().before_epoch(epoch)
        if self.options.labels == "instances":
            return
        embeddings = inference.embed(self.network, self.task.test_batches(self.task.train))
        seed = derive_seed(self.spec.seed, "clusters", epoch) % 2**32
        pseudo = FOUND_BY[self.options.labels](embeddings, self.options.clusters, seed)
        self.pseudo = pseudo.to(self.pseudo.device)
        if hasattr(self.loss, "proxies"):
            sums = embeddings.new_zeros(self.options.clusters, embeddings.shape[1])
            sums.index_add_(0, pseudo, F.normalize(embeddings, dim=1))
            with torch.no_grad():
                self.loss.proxies.copy_(F.normalize(sums, dim=1))


# how clusters are found: functions of embeddings (N, D), the number of clusters and a seed


def kmeans(embeddings: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Cluster numbers (N,) of the directions of embeddings (N, D), as DeepCluster has them."""
    return _clustered("KMeans", embeddings, n_clusters=clusters, n_init=1, random_state=seed)


def hierarchical(embeddings: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Cluster numbers (N,) by Ward's agglomeration of the directions, as UHML's pseudo-labels but not hyperbolic."""
    return _clustered("AgglomerativeClustering", embeddings, n_clusters=clusters)


def _clustered(estimator: str, embeddings: Tensor, **options: int) -> Tensor:
    require("scikit-learn", "sklearn")
    from sklearn import cluster

    unit = F.normalize(embeddings.double(), dim=1).float().cpu().numpy()
    return torch.from_numpy(getattr(cluster, estimator)(**options).fit_predict(unit)).long()


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


FOUND_BY = {"kmeans": kmeans, "hierarchical": hierarchical, "random_walk": random_walk}
