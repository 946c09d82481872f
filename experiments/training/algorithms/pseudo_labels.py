"""Training without labels on pseudo-labels that are found anew from the network's embeddings before every epoch.

Papers     Caron et al., "Deep Clustering for Unsupervised Learning of Visual Features", ECCV 2018 (k-means); Yan
           et al., "Unsupervised Hyperbolic Metric Learning", CVPR 2021 (hierarchical); Iscen et al., "Mining on
           Manifolds", CVPR 2018 (random walk); instance discrimination, where every image is a class.
Deviations Cluster numbers mean nothing from epoch to epoch, so the proxies of a loss that has them go to the means of
           the new clusters; DeepCluster draws a new classifier. The optimiser keeps its moments.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import clusters as methods
from experiments.networks.backbones import Network
from experiments.training import batches, inference
from experiments.training.algorithms import supervised
from experiments.training.algorithms.momentum_encoder import without_labels
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec

FOUND_BY = {"kmeans": methods.kmeans, "hierarchical": methods.hierarchical, "random_walk": methods.random_walk}


class Algorithm(supervised.Algorithm):
    """loss(embeddings, pseudo-labels).

    Args:
        labels: "instances", or how clusters are found: "kmeans", "hierarchical" or "random_walk".
        clusters: how many; at most the number of training images.
    """

    from_labels = False

    def __init__(
        self, spec: RunSpec, task: batches.Task, network: Network, *, labels: str = "instances", clusters: int = 100
    ):
        without_labels(task)
        images = len(task.train)
        if labels != "instances" and clusters > images:
            raise ValueError(f"clusters must be at most {images}, the training images, got {clusters}")
        task.num_classes = images if labels == "instances" else clusters
        super().__init__(spec, task, network)
        self.labels, self.clusters = labels, clusters
        self.pseudo = torch.arange(images, device=next(network.parameters()).device)

    @staticmethod
    def check(*, labels: str, clusters: int) -> None:
        if labels not in ("instances", *FOUND_BY):
            raise ValueError(f"labels must be one of instances, {', '.join(FOUND_BY)}, got {labels!r}")
        if not isinstance(clusters, int) or clusters < 2:
            raise ValueError(f"clusters must be a whole number from 2 up, got {clusters!r}")

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.network(images), self.pseudo[labels])}

    def before_epoch(self, epoch: int) -> None:
        super().before_epoch(epoch)
        if self.labels == "instances":
            return
        embeddings = inference.embed(self.network, self.task.test_batches(self.task.train))
        seed = derive_seed(self.spec.seed, "clusters", epoch) % 2**32
        pseudo = FOUND_BY[self.labels](embeddings, self.clusters, seed)
        self.pseudo = pseudo.to(self.pseudo.device)
        if hasattr(self.loss, "proxies"):
            sums = embeddings.new_zeros(self.clusters, embeddings.shape[1])
            sums.index_add_(0, pseudo, F.normalize(embeddings, dim=1))
            with torch.no_grad():
                self.loss.proxies.copy_(F.normalize(sums, dim=1))

    def state(self) -> dict:
        return super().state() | {"pseudo": self.pseudo}

    def load_state(self, state: Mapping) -> None:
        super().load_state(state)
        self.pseudo = state["pseudo"]
