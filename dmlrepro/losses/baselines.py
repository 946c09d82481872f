"""The losses that the reproduced papers compare with, configured as they were published.

All but two are pytorch-metric-learning's. Each function states its paper and settings and returns a module called as
`loss(embeddings, labels) -> scalar` on raw embeddings, which it L2-normalises itself. Deviations from that library:

- proxy_nca_pp and normalized_softmax are `CosineSoftmaxLoss` below. The library's NormalizedSoftmaxLoss leaves
  embeddings unnormalised; its ProxyNCALoss takes the logarithm after the softmax and drops a sample whose probability
  underflows.
- soft_triple regularises class by class; the library's regulariser builds the (C K)^2 matrix of all centres.
- margin samples its negatives from a random stream of its own, kept in the state_dict, instead of torch's global one.
  In eval() and under no_grad each call draws the same.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.extras import require
from dmlrepro.losses._state import _Stateful, replayable
from dmlrepro.losses.checks import (
    _WholeBatch,
    check_batch,
    check_directions,
    check_finite,
    check_positive,
    check_sizes,
    check_tensors,
    printed,
    values_are_known,
    whole_labels,
)
from dmlrepro.losses.recommended import BOUNDARY, PROXIES, groups, rate_of_the_network
from dmlrepro.vmf import at_least_float32

Arguments = ParamSpec("Arguments")


class Baseline(nn.Module):
    """A pytorch-metric-learning loss behind this package's contract: inputs checked, at least float32 under autocast.

    `miner(embeddings, labels)`, with ref_emb and ref_labels if there are any, chooses the pairs or triplets unless the
    call brings them; without one the loss takes them all. A batch that offers none has zero loss and zero gradient.
    What the loss learns, it learns `faster` times as fast as the network.
    """

    def __init__(
        self,
        loss: nn.Module,
        num_classes: int,
        embedding_size: int,
        miner: nn.Module | None = None,
        faster: float = PROXIES,
    ):
        super().__init__()
        self.faster = faster
        library: Any = loss
        if hasattr(library, "cast_types"):
            library.cast_types = functools.partial(_where_it_differs, library.cast_types)
        self.loss, self.miner = loss, miner
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.made_with: dict[str, Any] = {}  # the arguments of the function that built it, to print

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser, lr being the network's rate."""
        return groups(self, {"*": self.faster * lr})

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        if getattr(self.loss, "_is_replica", False):  # of DataParallel: the cast that was wrapped is the original's
            vars(self.loss).pop("cast_types", None)
        labels = whole_labels(embeddings, labels)
        check_batch(embeddings, labels, self.num_classes, self.embedding_size)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = at_least_float32(embeddings, embeddings)
            references = _references(ref_emb, ref_labels, embeddings)
            if self.miner and indices_tuple is None:
                indices_tuple = self.miner(embeddings, labels, *references)
            return self.loss(embeddings, labels, indices_tuple, *references)

    def extra_repr(self) -> str:
        return _shown(self.made_with)


def _references(ref_emb: Tensor | None, ref_labels: Tensor | None, embeddings: Tensor) -> tuple[Tensor, ...]:
    """References and their labels beside the embeddings; () without any. ValueError names what does not fit."""
    if ref_emb is None and ref_labels is None:
        return ()
    if ref_emb is None or ref_labels is None:
        raise ValueError("ref_emb and ref_labels must be given together, or neither of them")
    check_tensors(ref_emb=ref_emb, ref_labels=ref_labels)
    dim = embeddings.shape[1]
    if ref_emb.ndim != 2 or ref_emb.shape[1] != dim or ref_labels.shape != ref_emb.shape[:1]:
        shapes = f"{tuple(ref_emb.shape)} and {tuple(ref_labels.shape)}"
        raise ValueError(f"ref_emb must have shape (N, {dim}) and ref_labels (N,), got {shapes}")
    if values_are_known() and not ref_emb.isfinite().all():
        raise ValueError("ref_emb contains NaN or infinity; lower the learning rate or inspect the input images")
    labels = whole_labels(embeddings, ref_labels, "ref_labels")
    # two views may share one tensor of labels, by which the library would take them for one batch
    return ref_emb.to(embeddings), labels.view_as(labels)


def _shown(made_with: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in made_with.items())


def _builder(build: Callable[Arguments, nn.Module]) -> Callable[Arguments, nn.Module]:
    """Of a function that builds a loss: the sizes are checked first, and the loss prints the arguments."""

    @functools.wraps(build)
    def checked(*args: Arguments.args, **options: Arguments.kwargs) -> nn.Module:
        given = inspect.signature(build).bind(*args, **options)
        given.apply_defaults()
        check_sizes(**{name: given.arguments[name] for name in ("num_classes", "embedding_size")})
        try:
            loss: Any = build(*args, **options)
        except ModuleNotFoundError:
            require("pytorch-metric-learning")  # says what to install
            raise
        loss.made_with = dict(given.arguments)
        return loss

    return checked


def _where_it_differs(cast_types: Any, dtype: torch.dtype, device: torch.device) -> None:
    """The library's cast of its parameters, in every call and by way of `.data`, which torch.export cannot write."""
    if any((each.dtype, each.device) != (dtype, device) for each in cast_types.__self__.parameters()):
        cast_types(dtype, device)


class CosineSoftmaxLoss(_WholeBatch):
    """Cross entropy of cosines to one proxy per class, divided by the temperature; averaged over the batch.

    Proxies (C, D) start as normal vectors of standard deviation init_std; only their direction counts, but their norm
    sets how far an optimiser step of given size turns them.
    """

    def __init__(self, num_classes: int, embedding_size: int, temperature: float, init_std: float):
        super().__init__()
        check_positive(temperature=temperature)
        self.proxies = nn.Parameter(init_std * torch.randn(num_classes, embedding_size))
        self.temperature = temperature

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser, lr being the network's rate: proxies at 100 lr."""
        return groups(self, {"proxies": PROXIES * lr})

    def per_sample(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The terms (B,) whose mean the loss is."""
        return self.of_batch(embeddings, whole_labels(embeddings, labels), "none")

    def of_batch(self, embeddings: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        check_batch(embeddings, labels, *self.proxies.shape)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = at_least_float32(embeddings, embeddings)
            proxies = self.proxies.to(embeddings.dtype)
            check_directions(proxies, "proxies")
            cosines = F.normalize(embeddings, dim=-1) @ F.normalize(proxies, dim=-1).T
            return F.cross_entropy(cosines / self.temperature, labels, reduction=reduction)

    def extra_repr(self) -> str:
        return printed(self, **dict(zip(("num_classes", "embedding_size"), self.proxies.shape)))


def proxies_of(loss: nn.Module) -> Tensor | None:
    """Proxies (C, M, D) of a loss, unnormalised and differentiable, or None if it has none.

    Works for every function of this file and for any module with a `proxies` attribute of shape (C, D) or (C, M, D).
    """
    inner: Any = loss.loss if isinstance(loss, Baseline) else loss
    if getattr(inner, "proxies", None) is not None:
        return inner.proxies if inner.proxies.ndim == 3 else inner.proxies.unsqueeze(1)
    if hasattr(inner, "fc"):  # SoftTriple: (D, C * M), the centres of a class side by side
        return inner.fc.T.unflatten(0, (inner.num_classes, inner.centers_per_class))
    if hasattr(inner, "W"):  # ArcFace, CosFace: (D, C)
        return inner.W.T.unsqueeze(1)
    return None


# Proxy and classification losses


@_builder
def proxy_anchor(num_classes: int, embedding_size: int, *, margin: float = 0.1, alpha: float = 32.0) -> nn.Module:
    """Proxy Anchor, Kim et al., CVPR 2020, with margin delta 0.1 and scale alpha 32."""
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    check_finite(margin=margin)
    check_positive(alpha=alpha)
    loss = ProxyAnchorLoss(num_classes, embedding_size, margin=margin, alpha=alpha)
    return Baseline(loss, num_classes, embedding_size)


@_builder
def proxy_nca_pp(num_classes: int, embedding_size: int, *, temperature: float = 1 / 9) -> nn.Module:
    """ProxyNCA++, Teh et al., ECCV 2020: softmax of -||x - p||^2 / temperature over all classes, the own one included.

    On unit vectors ||x - p||^2 = 2 - 2 cos, so this is the cosine softmax at temperature / 2 (1/18 by default).
    """
    check_positive(temperature=temperature)
    return CosineSoftmaxLoss(num_classes, embedding_size, temperature / 2, init_std=1 / 8)


@_builder
def normalized_softmax(num_classes: int, embedding_size: int, *, temperature: float = 0.05) -> nn.Module:
    """NormSoftmax, Zhai and Wu, BMVC 2019, with normalised embeddings, at temperature 0.05."""
    init_std = (3 * embedding_size) ** -0.5  # its authors draw uniformly from +-1/sqrt(D), which has this deviation
    return CosineSoftmaxLoss(num_classes, embedding_size, temperature, init_std)


@_builder
def soft_triple(
    num_classes: int,
    embedding_size: int,
    *,
    la: float = 20.0,
    gamma: float = 0.1,
    tau: float = 0.2,
    margin: float = 0.01,
    centers_per_class: int = 10,
) -> nn.Module:
    """SoftTriple, Qian et al., ICCV 2019: a class's centres are weighted by softmax(cos / gamma).

    tau weighs the mean distance between the centres of a class, halved as in the paper: the sum over unordered pairs is
    divided by C K (K - 1).
    """
    from pytorch_metric_learning.losses import SoftTripleLoss

    check_positive(la=la, gamma=gamma, centers_per_class=centers_per_class)
    check_sizes(centers_per_class=centers_per_class)
    check_finite(tau=tau, margin=margin)
    spread = functools.partial(_spread, num_classes=num_classes, centers_per_class=centers_per_class)
    loss = SoftTripleLoss(
        num_classes,
        embedding_size,
        centers_per_class=centers_per_class,
        la=la,
        gamma=gamma,
        margin=margin,
        weight_regularizer=spread if centers_per_class > 1 and tau else None,
        weight_reg_weight=tau,
    )
    return Baseline(loss, num_classes, embedding_size)


def _spread(centers: Tensor, num_classes: int, centers_per_class: int) -> Tensor:
    """Half the mean distance between the centres (C K, D) of a class."""
    centers = F.normalize(centers, dim=-1).unflatten(0, (num_classes, centers_per_class))
    first, second = torch.triu_indices(centers_per_class, centers_per_class, offset=1, device=centers.device)
    cosines = (centers @ centers.mT)[:, first, second]
    return (2 + 1e-5 - 2 * cosines).sqrt().mean() / 2  # 1e-5, as in the released code: finite slope where two meet


@_builder
def arcface(num_classes: int, embedding_size: int, *, margin: float = 0.5, scale: float = 64.0) -> nn.Module:
    """ArcFace, Deng et al., CVPR 2019: additive angular margin in radians. Roth et al. use scale 16."""
    from pytorch_metric_learning.losses import ArcFaceLoss

    check_finite(margin=margin)
    if abs(margin) > math.pi:  # pytorch-metric-learning's is in degrees; as radians nothing would be trained
        raise ValueError(f"margin must be an angle in radians, got {margin}; pass math.radians({margin})")
    check_positive(scale=scale)
    loss = ArcFaceLoss(num_classes, embedding_size, margin=math.degrees(margin), scale=scale)
    return Baseline(loss, num_classes, embedding_size)


@_builder
def cosface(num_classes: int, embedding_size: int, *, margin: float = 0.35, scale: float = 64.0) -> nn.Module:
    """CosFace, Wang et al., CVPR 2018: additive margin on the cosine."""
    from pytorch_metric_learning.losses import CosFaceLoss

    check_finite(margin=margin)
    check_positive(scale=scale)
    return Baseline(CosFaceLoss(num_classes, embedding_size, margin=margin, scale=scale), num_classes, embedding_size)


# Pair and triplet losses


@_builder
def contrastive(
    num_classes: int, embedding_size: int, *, pos_margin: float = 0.0, neg_margin: float = 0.5
) -> nn.Module:
    """Contrastive, Hadsell et al., CVPR 2006, in the hinge form of Musgrave et al., ECCV 2020.

    [d - pos_margin]+ over same-class pairs plus [neg_margin - d]+ over the others, d the Euclidean distance of unit
    vectors, each averaged over its non-zero terms.
    """
    from pytorch_metric_learning.losses import ContrastiveLoss

    check_finite(pos_margin=pos_margin, neg_margin=neg_margin)
    return Baseline(ContrastiveLoss(pos_margin, neg_margin), num_classes, embedding_size)


@_builder
def cross_batch_memory(
    num_classes: int,
    embedding_size: int,
    *,
    form: str = "c2",
    pos_margin: float = 0.0,
    neg_margin: float = 0.5,
    memory_size: int = 800,
    warmup_steps: int = 1000,
) -> nn.Module:
    """XBM, Wang et al., CVPR 2020: the contrastive loss within the batch, plus that of the batch and past embeddings.

    form "c2" is `contrastive`; "c1" has [1 - pos_margin - s]+ and [s - neg_margin]+ of cosines s instead. The memory
    holds the last memory_size embeddings of the steps after the first warmup_steps. Its released code stores a batch
    before it is compared, which pairs every sample with itself; here it is stored afterwards.
    """
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import ContrastiveLoss

    check_finite(pos_margin=pos_margin, neg_margin=neg_margin, warmup_steps=warmup_steps)
    check_sizes(memory_size=memory_size)
    if form not in ("c1", "c2"):
        raise ValueError(f'form must be "c1" or "c2", got {form!r}')
    if form == "c1":
        pairs = ContrastiveLoss(1 - pos_margin, neg_margin, distance=CosineSimilarity())
    else:
        pairs = ContrastiveLoss(pos_margin, neg_margin)
    return CrossBatchMemory(pairs, num_classes, embedding_size, memory_size, warmup_steps)


class CrossBatchMemory(_Stateful, _WholeBatch):
    """See `cross_batch_memory`. The state_dict has the memory and how far it is, so that a checkpoint restores them.

    In eval() and under no_grad the batch is compared with the memory, and not stored.
    """

    kept = ("memory", "memory_labels", "stored", "steps")

    def __init__(self, pairs: nn.Module, num_classes: int, embedding_size: int, memory_size: int, warmup_steps: int):
        super().__init__()
        self.pairs, self.num_classes, self.embedding_size = pairs, num_classes, embedding_size
        self.memory_size, self.warmup_steps = memory_size, warmup_steps
        self.made_with: dict[str, Any] = {}
        # no buffers, which averages of weights would average
        self.memory = torch.zeros(memory_size, embedding_size)
        self.memory_labels = torch.zeros(memory_size, dtype=torch.int64)
        self.stored = self.steps = torch.zeros((), dtype=torch.int64, device="cpu")

    parameter_groups = rate_of_the_network

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: object, **options: object):
        self.memory, self.memory_labels = fn(self.memory), fn(self.memory_labels)
        return super()._apply(fn, *args, **options)

    @replayable
    def of_batch(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.memory.shape[1])
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings, device = at_least_float32(embeddings, embeddings), embeddings.device
            self.memory, self.memory_labels = self.memory.to(device), self.memory_labels.to(device)
            value, stored = self.pairs(embeddings, labels), int(self.stored)
            if stored:
                past = slice(min(stored, len(self.memory)))
                memory, classes = self.memory[past].to(embeddings.dtype), self.memory_labels[past]
                value = value + self.pairs(embeddings, labels, ref_emb=memory, ref_labels=classes)
        if self.steps >= self.warmup_steps:
            last = slice(-len(self.memory), None)  # of a batch larger than the memory only the end stays
            places = torch.arange(stored, stored + len(labels), device=labels.device)[last] % len(self.memory)
            # new tensors, because the graph has the old ones
            self.memory = self.memory.index_copy(0, places, embeddings.detach()[last].to(self.memory.dtype))
            self.memory_labels = self.memory_labels.index_copy(0, places, labels[last])
            self.stored = self.stored + len(labels)
        self.steps = self.steps + 1
        return value

    def extra_repr(self) -> str:
        return _shown(self.made_with)


@_builder
def triplet(num_classes: int, embedding_size: int, *, margin: float = 0.2, squared: bool = True) -> nn.Module:
    """Triplet with semi-hard negatives, Schroff et al. (FaceNet), CVPR 2015, on unit vectors.

    All triplets with d_ap < d_an <= d_ap + margin, averaged over the non-zero terms; d is the squared distance as in
    the paper, or the distance itself (squared=False) as in Musgrave et al.
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    check_finite(margin=margin)
    distance = LpDistance(power=2 if squared else 1)
    miner = TripletMarginMiner(margin, type_of_triplets="semihard", distance=distance)
    return Baseline(TripletMarginLoss(margin, distance=distance), num_classes, embedding_size, miner)


@_builder
def multi_similarity(
    num_classes: int,
    embedding_size: int,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float = 0.1,
) -> nn.Module:
    """Multi-Similarity, Wang et al., CVPR 2019, with its pair mining, averaged over all anchors of the batch.

    beta is 50 in the paper, 40 in its released code and in nivMF's and CCP's comparisons; the cosine threshold `base`
    (lambda) is 1 in the paper and 0.5 in the code and everywhere since.
    """
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    check_positive(alpha=alpha, beta=beta)
    check_finite(base=base, epsilon=epsilon)
    loss = MultiSimilarityLoss(alpha, beta, base)
    return Baseline(loss, num_classes, embedding_size, MultiSimilarityMiner(epsilon))


@_builder
def margin(
    num_classes: int, embedding_size: int, *, margin: float = 0.2, beta: float = 1.2, nu: float = 0.0
) -> nn.Module:
    """Margin, Wu et al., ICCV 2017: distance-weighted negatives and a learned boundary beta per class.

    The hinges [d_ap - beta + margin]+ and [beta - d_an + margin]+ are summed over the triplets and divided by the
    number of non-zero ones.
    """
    from pytorch_metric_learning.losses import MarginLoss
    from pytorch_metric_learning.miners import DistanceWeightedMiner

    check_finite(margin=margin, beta=beta, nu=nu)
    loss = MarginLoss(margin, nu=nu, beta=beta, learn_beta=True, num_classes=num_classes)
    return _Mining(loss, num_classes, embedding_size, _OwnStream(DistanceWeightedMiner()), BOUNDARY)


class _Mining(_Stateful, Baseline):
    """A baseline whose miner draws; the state_dict has its seed, so that a checkpoint restores the stream."""

    kept = ("miner.seed",)
    forward = replayable(Baseline.forward)


class _OwnStream(nn.Module):
    """Runs a miner that draws from torch's global generators on a seed of its own, advanced by one with each call.

    The library's miner goes from class to class; on a GPU that is hundreds of launches and a hundred waits. So it runs
    on the CPU, which makes its draws those of a CPU everywhere.
    """

    def __init__(self, miner: nn.Module):
        super().__init__()
        self.miner = miner
        self.seed = torch.randint(2**62, (), device="cpu")  # no buffer, which averages of weights would average

    def forward(self, embeddings: Tensor, labels: Tensor, *references: Tensor):
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(int(self.seed))
            self.seed = self.seed + 1
            chosen = self.miner(*(x.detach().cpu() for x in (embeddings, labels, *references)))
        return tuple(indices.to(embeddings.device) for indices in chosen)
