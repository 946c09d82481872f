"""What the network of a run makes of images: embeddings, and their retrieval scores."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from dmlrepro import retrieval
from experiments.datasets import images, manifests
from experiments.networks import backbones
from experiments.training import batches
from experiments.training.device import device_for_training
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec

CALIBRATED = 20  # training batches whose statistics BatchNorm begins with where embeddings before training are used
REPLICA_NOISE = 1e-4  # relative; it does to a training run what another machine's rounding does, only more


def build_network(spec: RunSpec, manifest: manifests.Manifest) -> backbones.EmbeddingNet:
    """The untrained network of a spec for the images of a dataset."""
    grey = isinstance(manifest.images, np.ndarray) and manifest.images.ndim == 3
    network = backbones.build(
        spec.backbone,
        spec.embedding_size,
        pooling=spec.pooling,
        weights=spec.weights,
        in_channels=1 if grey else 3,
        seed=derive_seed(spec.seed, "network"),
    )
    patches: Any = getattr(network.trunk, "patch_embed", None)  # timm's transformers have one
    if getattr(patches, "strict_img_size", False) and spec.image_size not in patches.img_size:
        raise ValueError(f"image_size {spec.image_size}: {spec.backbone} takes {patches.img_size[0]} pixels only")
    if spec.freeze_batchnorm:
        backbones.freeze_batchnorm(network)
    return network


@torch.no_grad()
def embed(network: nn.Module, batches: Iterable[Tensor], *, half: bool = False, upto: str = "") -> Tensor:
    """Raw embeddings (N, D) float32 on the CPU of uint8 image batches, in evaluation mode; half: by bfloat16. upto:
    what enters the module of this name instead."""
    device, was_training = next(network.parameters()).device, network.training
    forward: Callable = functools.partial(backbones.entering, network, upto) if upto else network
    network.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        parts = [forward(batch.to(device, non_blocking=True)).float() for batch in batches]
    network.train(was_training)
    return torch.cat(parts).cpu()


def embed_images(
    spec: RunSpec, network: nn.Module, manifest: manifests.Manifest, indices: np.ndarray | list[int]
) -> Tensor:
    """Embeddings (len(indices), D) of images with the spec's test-time crop, on the device of training."""
    store = images.open_images(manifest, short_side=batches.stored_side(spec))
    return embed(network.to(device_for_training()), batches.test_batches(spec, store, np.asarray(indices)))


def neighbours(task: batches.Task, network: nn.Module) -> Tensor:
    """(N, k) int64: each train image and its k - 1 nearest neighbours, by the embeddings of the test-time crops."""
    embeddings = embed(network, task.test_batches(task.train)).to(next(network.parameters()).device)
    own, others = torch.arange(len(task.train))[:, None], (task.spec.neighbours or 1) - 1
    return torch.cat([own, retrieval.nearest(embeddings, others).cpu()], dim=1) if others else own


def evaluate(
    task: batches.Task, networks: Mapping[str, nn.Module], step: int, *, validation_only: bool = False
) -> tuple[list[dict], dict[str, Tensor]]:
    """The metric rows of all networks, and the embeddings of the test images by network (none with validation_only).

    Metrics of a held-out fold are named `val ...`. Rows of every network but the one named "" say its name. With
    validation_only the scores decide when to stop and which weights are best, and are never published: these networks
    embed in the precision of training. All other scores are those of float32.
    """

    def retrieve(network: nn.Module, indices: np.ndarray, among_all: bool) -> tuple[dict[str, float], Tensor]:
        half = validation_only and task.spec.precision == "bfloat16"
        found = embed(network, task.test_batches(indices), half=half)
        if not found.isfinite().all():
            raise FloatingPointError("the embeddings of the evaluated images are not finite; lower lr or loss_lr")
        device = next(network.parameters()).device
        points, labels, searched = searching(found.to(device), task.manifest, indices, among_all)
        return retrieval.retrieval(points, labels, task.spec.ks, measures=retrieval.MEASURES, **searched), found

    rows, embeddings = [], {}
    for name, network in networks.items():
        scores: dict[str, float] = {}
        if len(task.validation):
            of_validation, _ = retrieve(network, task.validation, among_all=True)
            scores |= {f"val {metric}": value for metric, value in of_validation.items()}
        if not validation_only:
            of_test, embeddings[name] = retrieve(network, task.test, among_all=False)
            scores |= of_test
        own = {"step": step} | ({"network": name} if name else {})
        rows += [own | {"metric": metric, "value": value} for metric, value in scores.items()]
    return rows, embeddings


def searching(
    embeddings: Tensor, manifest: manifests.Manifest, indices: np.ndarray, among_all: bool = False
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Of images with these embeddings (N, D) those that search, and their labels; and as arguments of
    `retrieval.retrieval` what they search, if that is not themselves, each left out of its own list. among_all: each
    searches all others, whatever the manifest says of queries and gallery."""
    labels = torch.from_numpy(manifest.labels[indices]).to(embeddings.device)
    query, gallery = manifest.is_query[indices], manifest.is_gallery[indices]
    if among_all or (query & gallery).all():
        return embeddings, labels, {}
    if (query & gallery).any():
        raise ValueError("is_query and is_gallery must be equal or disjoint, or an image would find itself")
    return embeddings[query], labels[query], {"gallery": embeddings[gallery], "gallery_labels": labels[gallery]}


@torch.no_grad()
def start_head(task: batches.Task, network: Any, *, whitened: bool) -> None:
    """Let the head be the first principal components of the features of the training images, of unit variance if
    `whitened`; scaled as a whole to the size of weights that are drawn, so that learning rates mean the same.
    ValueError: more components are asked for than there are features or images."""
    head, features = network.head, embed(network, task.test_batches(task.train), upto="head").double()
    most, number = min(features.shape[1], len(features) - 1), head.out_features
    if number > most:
        raise ValueError(f"head_start={task.spec.head_start!r}: embedding_size must be at most {most}, got {number}")
    variances, axes = torch.linalg.eigh(features.T.cov())
    variances, axes = variances[-number:].flip(0), axes[:, -number:].flip(1).T
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # both signs are right, one is chosen
    if whitened:
        axes = axes / variances.clamp_min(1e-9 * variances[0]).sqrt()[:, None]
    weight = axes * (head.weight.std().item() / axes.std())
    head.weight.copy_(weight)
    head.bias.copy_(-weight @ features.mean(0))


def calibrate_batchnorm(task: batches.Task, network: backbones.Network) -> None:
    """Give every BatchNorm that learns the statistics of the first CALIBRATED training batches. Before the first step
    it has those of other images, or of none: in evaluation mode the network is another one then than that which
    training goes on from, and what is placed at its embeddings lies nowhere near them."""
    if not task.spec.freeze_batchnorm:
        update_bn(task.train_batches(0, CALIBRATED, next(network.parameters()).device), network)


def class_means(task: batches.Task, network: backbones.Network) -> Tensor:
    """(C, D) mean raw embedding of each train class, before training; BatchNorm that learns is calibrated first."""
    calibrate_batchnorm(task, network)
    embeddings = embed(network, task.test_batches(task.train))
    labels = torch.from_numpy(task.train_labels)
    sums = torch.zeros(task.num_classes, embeddings.shape[1]).index_add_(0, labels, embeddings)
    return sums / labels.bincount(minlength=task.num_classes)[:, None]


def perturb(network: nn.Module, spec: RunSpec) -> None:
    """Give a replica its own small noise on the initial weights; the run itself, replica 0, is left as it is."""
    if spec.replica:
        generator = torch.Generator().manual_seed(derive_seed(spec.seed, "replica", spec.replica))
        with torch.no_grad():
            for parameter in network.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                parameter.mul_(1 + REPLICA_NOISE * noise)
