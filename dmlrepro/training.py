"""The training loop: a pure function of a RunSpec.

A RunSpec is plain data. `train(spec)` loads the dataset, builds the network and the loss, optimises, evaluates, and
returns everything a notebook needs: metric rows, the loss curve, the embeddings of the evaluated images, and the
learned weights. Every random draw is a function of `spec.seed` and the step, so a run that was interrupted and
resumed is the run that was not, and N ranks (see distributed.py) draw what one would.
"""

import ctypes
import dataclasses
import functools
import hashlib
import importlib
import inspect
import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dmlrepro import backbones, datasets, distributed, images, metrics, samplers
from dmlrepro.files import replacing

CHECKPOINT_SECONDS = 300  # at the end of an epoch after a tenth of it


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one training run. Two equal specs give the same numbers on one machine."""

    # data
    dataset: str
    label_noise: float = 0.0  # fraction of train labels replaced by a uniformly random other class
    images_per_class: int | None = None  # embedded glyphs only
    fold: int | None = None  # of the `folds` class-disjoint parts of the train classes this one is for validation
    folds: int = 4
    # network
    backbone: str = "conv4"
    weights: str | None = None  # None, "imagenet" or a file
    embedding_size: int | None = 128  # None: pooled features without a head
    pooling: str = "avg"
    image_size: int | None = None  # pixels of the square crop; None: the images as they are
    crop_scale: tuple[float, float] = (0.16, 1.0)  # area of the random resized crop
    test_resize: int | None = None  # short side before the test-time centre crop; None: image_size
    freeze_batchnorm: bool = False
    freeze_trunk: bool = False  # train the head alone, on features computed once
    # loss: "<module>.<name>" under dmlrepro.losses; None evaluates the network as it is
    loss: str | None = "potential_field.PotentialFieldLoss"
    loss_options: Mapping = field(default_factory=dict)
    loss_lr: Mapping = field(default_factory=dict)  # learning rate by parameter name of the loss, "*" for the rest
    loss_weight_decay: float = 0.0
    loss_clip_value: float | None = None  # of the gradients of the loss's parameters; clip_value: of all
    proxies_from_class_means: bool = False
    # optimisation: exactly one of steps and epochs
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 100
    views: int = 1  # random crops of each image of a batch; batch_size counts images
    samples_per_class: int | None = None  # None: shuffled batches; else M per class
    neighbours: int | None = None  # batches of groups of so many nearest neighbours, found anew every epoch
    optimizer: str = "adamw"
    lr: float = 1e-4
    head_lr: float | None = None  # None: lr
    weight_decay: float = 1e-4
    warmup_epochs: float = 0.0  # the trunk is frozen so long
    lr_drop_epochs: tuple[float, ...] = ()  # when every learning rate is multiplied by lr_drop
    lr_drop: float = 0.5
    clip_value: float | None = None
    clip_norm: float | None = None
    # evaluation
    ks: tuple[int, ...] = (1, 2, 4, 8)
    eval_every: int | None = None  # steps
    eval_every_epochs: float | None = None  # both None: after the last step only
    monitor: str = "P@1"  # picks the best evaluation: on the validation classes when there is a fold, else on test
    patience: int | None = None  # evaluations in a row that are not the best yet before training stops
    restore_best: bool = False  # leave the weights of the best evaluation behind, not the last ones
    # machine
    seed: int = 0
    threads: int | None = None  # CPU threads; None: all
    precision: str = "float32"  # "bfloat16": autocast in training; evaluation is always in float32
    compile: bool = False  # torch.compile the network
    initial_noise: float = 0.0  # relative noise on the initial weights, for the tolerances of the golden numbers
    # labels for the tables; they do not change the run
    method: str = ""
    setting: str = ""
    protocol: str = "conventional"

    def __post_init__(self):
        for name in ("crop_scale", "lr_drop_epochs", "ks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.loss is not None and (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give exactly one of steps and epochs, got steps={self.steps}, epochs={self.epochs}")
        positive = ("steps", "epochs", "batch_size", "neighbours", "lr", "eval_every", "eval_every_epochs", "patience")
        for name in positive:
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.eval_every is not None and self.eval_every_epochs is not None:
            raise ValueError("give at most one of eval_every (steps) and eval_every_epochs")
        if self.eval_every is None and self.eval_every_epochs is None and (self.patience or self.restore_best):
            raise ValueError("patience and restore_best need eval_every or eval_every_epochs")
        monitors = ("P@1", "RP", "MAP@R", "mAP@1000", *(f"R@{k}" for k in self.ks))
        if self.monitor not in monitors:
            raise ValueError(f"monitor must be one of {', '.join(monitors)}, got {self.monitor!r}")
        if self.fold is not None and not 0 <= self.fold < self.folds:
            raise ValueError(f"fold must lie in [0, {self.folds}), the number of folds, got {self.fold}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; choose one of {sorted(OPTIMIZERS)}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', got {self.precision!r}")
        if self.views < 1 or (self.views > 1 and (self.image_size is None or self.freeze_trunk)):
            raise ValueError(f"views={self.views}: views are random crops; give image_size, and train the trunk")
        if self.neighbours is not None and self.samples_per_class is not None:
            raise ValueError("give at most one of samples_per_class and neighbours")
        if not 0 <= self.label_noise < 1:
            raise ValueError(f"label_noise must be a fraction in [0, 1), got {self.label_noise}")
        loss_builder(self.loss)

    def as_dict(self) -> dict:
        """What determines the numbers: every field but the labels, as plain data."""
        content = dataclasses.asdict(self) | {"loss_options": dict(self.loss_options), "loss_lr": dict(self.loss_lr)}
        return {name: value for name, value in content.items() if name not in ("method", "setting", "protocol")}

    def replace(self, **changes) -> "RunSpec":
        return dataclasses.replace(self, **changes)


OPTIMIZERS = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.9),
}


@dataclass
class Outcome:
    """What a run leaves behind.

    rows: list of {selection, step, metric, value}; recalls and precisions are fractions.
    losses: (steps,) float32, the training loss of every step.
    embeddings: (N, D) raw embeddings of the test images, in manifest order of the test split.
    network_state, loss_state: state dicts.
        All three are of the last step, with restore_best of the best evaluation.
    cost: {seconds, steps_per_second}, on a GPU also gpu_gigabytes; never part of a deterministic table.
    """

    rows: list[dict]
    losses: Tensor
    embeddings: Tensor
    network_state: dict[str, Tensor]
    loss_state: dict[str, Tensor]
    cost: dict[str, float]


def loss_builder(name: str | None) -> Callable | None:
    """The class or function `name` = "<module>.<callable>" under dmlrepro.losses; ValueError lists what exists."""
    if name is None:
        return None
    module_name, _, attribute = name.partition(".")
    folder = Path(__file__).parent / "losses"
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "checks"))
    if module_name not in known:
        raise ValueError(f"unknown loss {name!r}: losses live in the modules {', '.join(known)}")
    module = importlib.import_module(f"dmlrepro.losses.{module_name}")
    builder = getattr(module, attribute, None)
    if builder is None:
        public = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        raise ValueError(f"unknown loss {name!r}: {module_name} has {', '.join(sorted(public))}")
    return builder


def build_loss(spec: RunSpec, num_classes: int, embedding_size: int) -> nn.Module:
    """The loss of a spec, its proxies drawn from the spec's seed; ValueError on an option the loss does not have."""
    builder = loss_builder(spec.loss)
    options = inspect.signature(builder).parameters
    unknown = set(spec.loss_options) - set(options)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in options.values()):
        raise ValueError(f"loss {spec.loss} has no option {sorted(unknown)}; it takes {sorted(options)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_mix(spec.seed, "loss"))
        return builder(num_classes, embedding_size, **spec.loss_options)


def device_for_training() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def reuse_freed_memory() -> None:
    """Let glibc keep freed blocks below 32 MB (its limit) for the next step instead of returning them to the kernel.

    Without this, fresh pages for the same activations are a third of every step on a CPU.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # not musl
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 2**25)
        libc.mallopt(trim_threshold, 2**31 - 1)


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file to resume from when it exists, written every few minutes; left to the caller to remove.
        progress: description of the progress bar; None or a stderr that is not a terminal: silent.

    Raises:
        ValueError: naming the spec's field that does not fit the dataset, the backbone or the loss.
        FloatingPointError: when the loss, a weight or an embedding stops being finite.
    """
    started = time.perf_counter()
    reuse_freed_memory()
    device = device_for_training()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with distributed.first_rank_first():
        manifest = load_dataset(spec)
        network = build_network(spec, manifest).to(device)
        _perturb(network, spec)
        features = trunk_features(spec, network, manifest) if spec.freeze_trunk else None
        task = _Task(spec, manifest, features)
    if spec.freeze_trunk:
        network = HeadOnly(network)
    if spec.loss is None:
        rows, embeddings = _evaluate(task, network, 0)
        cost = {"seconds": time.perf_counter() - started}
        return Outcome(_selected(rows, "last"), torch.zeros(0), embeddings, _on_cpu(network), {}, cost)

    if not spec.freeze_batchnorm:
        network = distributed.synchronised_batchnorm(network, device)
    if spec.compile:
        torch.compiler.reset()  # torch compiles a function a few times per process, then no more; runs share `forward`
        network.compile()
    loss = build_loss(spec, task.num_classes, network.embedding_size).to(device)
    if spec.proxies_from_class_means:
        if not hasattr(loss, "initialize_proxies"):
            raise ValueError(f"proxies_from_class_means: the loss {spec.loss} has no initialize_proxies(class_means)")
        means = _class_means(task, network)
        loss.initialize_proxies(distributed.from_first(lambda: means).to(device))  # ranks may differ by rounding
    optimizer = _optimizer(spec, network, loss)
    schedule = _Schedule(spec, task.steps_per_epoch)
    state = _State(spec, network, loss, optimizer, schedule.total)
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint)

    network.train()
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    saved_at = time.monotonic()
    first, latest = state.step, None
    stepping = time.perf_counter()
    with _bar(progress, schedule.total, first) as bar:
        for batch, labels in _batches(task, network, state, first, schedule.total):
            if state.step in (first, schedule.warmup):
                for parameter in trunk:
                    parameter.requires_grad_(state.step >= schedule.warmup)
                replica = distributed.parallel(network)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * schedule.rate(state.step)
            state.losses[state.step] = _step(spec, replica, loss, optimizer, batch, labels, state.step)
            state.step += 1
            bar.update()
            latest = None
            if schedule.evaluates(state.step):
                state.check_finite()
                latest = rows, _ = _evaluate(task, network, state.step, validation_only=schedule.validation_only)
                if state.record(rows):
                    break
            age = time.monotonic() - saved_at
            if checkpoint is not None and age > CHECKPOINT_SECONDS * (0.1 if schedule.epoch_ends(state.step) else 1):
                state.save(checkpoint)
                saved_at = time.monotonic()
    stepping = time.perf_counter() - stepping
    state.check_finite()
    if latest is None or schedule.validation_only:
        latest = _evaluate(task, network, state.step)
    last, embeddings = latest
    rows = select_rows(last, state.history, spec.monitor)
    if spec.restore_best:
        best_step = state.restore_best()
        best, embeddings = _evaluate(task, network, best_step)
        if schedule.validation_only:  # these are the only looks at the test set
            rows = _selected(last, "last") + _selected(best, "val_best")
    outcome = Outcome(
        rows=rows,
        losses=state.losses[: state.step].cpu(),
        embeddings=embeddings,
        network_state=_on_cpu(network),
        loss_state=_on_cpu(loss),
        cost={
            "seconds": time.perf_counter() - started,
            "steps_per_second": (state.step - first) / max(stepping, 1e-9),
        }
        | ({"gpu_gigabytes": torch.cuda.max_memory_allocated() / 1e9} if device.type == "cuda" else {}),
    )
    return outcome


def load_dataset(spec: RunSpec) -> datasets.Manifest:
    """The manifest of a spec; label noise is drawn from the spec's seed."""
    return datasets.load(
        spec.dataset, label_noise=spec.label_noise, seed=spec.seed, images_per_class=spec.images_per_class
    )


def build_network(spec: RunSpec, manifest: datasets.Manifest) -> backbones.EmbeddingNet:
    """The untrained network of a spec for the images of a dataset."""
    grey = isinstance(manifest.images, np.ndarray) and manifest.images.ndim == 3
    network = backbones.build(
        spec.backbone,
        spec.embedding_size,
        pooling=spec.pooling,
        weights=spec.weights,
        in_channels=1 if grey else 3,
        seed=_mix(spec.seed, "network"),
    )
    patches = getattr(network.trunk, "patch_embed", None)  # of timm's transformers
    if getattr(patches, "strict_img_size", False) and spec.image_size not in patches.img_size:
        raise ValueError(f"image_size {spec.image_size}: {spec.backbone} takes {patches.img_size[0]} pixels only")
    if spec.freeze_batchnorm:
        backbones.freeze_batchnorm(network)
    return network


@torch.no_grad()
def embed(network: backbones.EmbeddingNet, batches: Iterator[Tensor]) -> Tensor:
    """Raw embeddings (N, D) float32 on the CPU of uint8 image batches, in evaluation mode."""
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    parts = [network(batch.to(device, non_blocking=True)).float() for batch in batches]
    network.train(was_training)
    return torch.cat(parts).cpu()


def embed_images(spec: RunSpec, network: backbones.EmbeddingNet, manifest: datasets.Manifest, indices) -> Tensor:
    """Embeddings (len(indices), D) of the given images of a dataset with the spec's test-time crop.

    The network is moved to the device of training.
    """
    store = images.open_images(manifest, short_side=_stored_side(spec))
    return embed(network.to(device_for_training()), _test_batches(spec, store, np.asarray(indices)))


def test_images(spec: RunSpec, manifest: datasets.Manifest, indices) -> Tensor:
    """The given images of a dataset as a network sees them at test time, uint8 (len(indices), C, H, W)."""
    store = images.open_images(manifest, short_side=_stored_side(spec))
    return torch.cat(list(_test_batches(spec, store, np.asarray(indices))))


class HeadOnly(nn.Module):
    """The head of a network on features (B, F) of its frozen trunk, with the state-dict names of the whole network."""

    def __init__(self, network: backbones.EmbeddingNet):
        super().__init__()
        self.trunk = nn.Identity()
        self.head = network.head
        self.embedding_size = network.embedding_size

    def forward(self, features: Tensor) -> Tensor:
        return self.head(features)


def trunk_features(spec: RunSpec, network: backbones.EmbeddingNet, manifest: datasets.Manifest) -> Tensor:
    """(N, F) pooled features of every image with the test-time crop, computed once per trunk and dataset and kept in
    the cache.
    """
    decides = [manifest.digest(), spec.backbone, spec.weights, spec.pooling, spec.image_size, spec.test_resize]
    decides += [] if spec.weights else [spec.seed, spec.initial_noise]
    name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    path = datasets.cache_root() / "features" / f"{name}.npy"
    if not path.exists():
        head, network.head = network.head, nn.Identity()
        features = embed_images(spec, network, manifest, np.arange(len(manifest.labels)))
        network.head = head
        with replacing(path) as temporary, open(temporary, "wb") as handle:
            np.save(handle, features.numpy())
    return torch.from_numpy(np.load(path))


def select_rows(last: list[dict], history: list[dict], monitor: str) -> list[dict]:
    """Rows of the last step, and of the best evaluation by validation and by test when there were several.

    A score picked on the test set is marked `test_best` and never stands alone: `last` is always there.
    """
    rows = _selected(last, "last")
    for selection, criterion in (("val_best", f"val {monitor}"), ("test_best", monitor)):
        candidates = [row for row in history if row["metric"] == criterion]
        if candidates:
            best = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            rows += _selected((row for row in history if row["step"] == best), selection)
    return rows


def _selected(rows: Iterable[dict], selection: str) -> list[dict]:
    return [row | {"selection": selection} for row in rows]


class _Task:
    """The images of a spec: which are trained on, validated on and tested on, and how a batch is made of them."""

    def __init__(self, spec: RunSpec, manifest: datasets.Manifest, features: Tensor | None = None):
        self.spec = spec
        self.manifest = manifest
        self.features = features
        self.test = manifest.indices("test")
        train = manifest.indices("train")
        self.validation = train[:0]
        labels = manifest.labels
        if spec.fold is not None:
            kept, held_out = datasets.folds(manifest, spec.folds)[spec.fold]
            self.validation = train[np.isin(labels[train], held_out)]
            train = train[np.isin(labels[train], kept)]
        self.train = train
        self.train_labels = np.unique(labels[train], return_inverse=True)[1] if len(train) else labels[train]
        self.num_classes = int(self.train_labels.max()) + 1 if len(train) else 0
        if spec.loss is not None:
            for name, indices in (("train", train), ("test", self.test)):
                if len(indices) == 0:
                    raise ValueError(f"dataset {manifest.name} has no {name} images; check its split")
            if spec.batch_size > len(train):
                raise ValueError(
                    f"batch_size {spec.batch_size} is larger than the {len(train)} training images of {manifest.name}"
                )
        self.steps_per_epoch = max(len(train) // spec.batch_size, 1)
        self.store = None if features is not None else images.open_images(manifest, short_side=_stored_side(spec))

    def index_batches(self, first: int, end: int, neighbours: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """(step, which of the train images) for steps first..end-1, which with `neighbours` are of one epoch."""
        size, per_class, start, seed = self.spec.batch_size, self.spec.samples_per_class, 0, (self.spec.seed, "sampler")
        if neighbours is not None:
            start = first - first % self.steps_per_epoch
            seed = (*seed, start // self.steps_per_epoch)
        count, generator = end - start, torch.Generator().manual_seed(_mix(*seed))
        if neighbours is not None:
            drawn = samplers.neighbour_groups(neighbours, size, count, generator)
        elif per_class is not None:
            drawn = samplers.m_per_class(self.train_labels, size, per_class, count, generator)
        else:
            drawn = samplers.shuffled(len(self.train), size, count, generator)
        for step, picked in enumerate(drawn, start):
            if step >= first:
                yield step, picked.repeat(self.spec.views)

    def train_batches(
        self, first: int, end: int, device: torch.device, neighbours: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(this rank's share of the images, all labels) on the device for steps first..end-1, prepared by threads."""
        labels = torch.from_numpy(self.train_labels)
        rows = distributed.share(self.spec.batch_size * self.spec.views)

        def make(step: int, picked: Tensor) -> tuple[Tensor, Tensor]:
            indices = self.train[picked.numpy()]
            if self.features is not None:
                batch = self.features[indices[rows]]
            elif self.spec.image_size is None:
                batch = images.plain_batch(self.store, indices[rows])
            else:
                generator = torch.Generator().manual_seed(_mix(self.spec.seed, "augmentation", step))
                batch = images.train_batch(
                    self.store, indices, self.spec.image_size, generator, scale=self.spec.crop_scale, rows=rows
                )
            return _pinned(batch), _pinned(labels[picked])

        steps = self.index_batches(first, end, neighbours)
        for batch, target in _ahead(make, steps, crops=self.features is None and self.spec.image_size is not None):
            yield batch.to(device, non_blocking=True), target.to(device, non_blocking=True)

    def test_batches(self, indices: np.ndarray) -> Iterator[Tensor]:
        if self.features is not None:
            return iter(self.features[indices].split(4096))
        return _test_batches(self.spec, self.store, indices)


def _stored_side(spec: RunSpec) -> int | None:
    return None if spec.image_size is None else max(spec.test_resize or spec.image_size, spec.image_size)


def _test_batches(spec: RunSpec, store, indices: np.ndarray, size: int = 256) -> Iterator[Tensor]:
    def make(chunk: np.ndarray) -> Tensor:
        if spec.image_size is None:
            return _pinned(images.plain_batch(store, chunk))
        return _pinned(images.test_batch(store, chunk, spec.image_size, resize=spec.test_resize))

    chunks = ((indices[start : start + size],) for start in range(0, len(indices), size))
    return _ahead(make, chunks, crops=spec.image_size is not None)


def _pinned(batch: Tensor) -> Tensor:
    """In page-locked memory, from which a copy to the GPU does not stop the threads."""
    return batch.pin_memory() if torch.cuda.is_available() else batch


def _ahead(make: Callable, arguments: Iterator[tuple], *, crops: bool) -> Iterator:
    """make(*arguments) in order; batches that need cropping a few ahead of the consumer, by threads."""
    if not crops:  # an indexing operation: cheaper than handing the interpreter lock to and fro
        while chunk := list(itertools.islice(arguments, 64)):  # drawn in a row, a sampler stays in the caches
            yield from (make(*item) for item in chunk)
        return
    workers = min(8, len(os.sched_getaffinity(0))) if torch.cuda.is_available() else 1
    with ThreadPoolExecutor(workers) as pool:
        pending = deque()
        for item in arguments:
            pending.append(pool.submit(make, *item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _batches(task: _Task, network, state: "_State", first: int, total: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Steps first..total-1; with groups of neighbours an epoch at a time, because these depend on the network."""
    device = state.losses.device
    if task.spec.neighbours is None:
        yield from task.train_batches(first, total, device)
        return
    for start in range(first - first % task.steps_per_epoch, total, task.steps_per_epoch):
        if start >= first:  # else the epoch was begun before an interruption, with what the checkpoint holds
            state.neighbours = _neighbours(task, network)
        end = min(start + task.steps_per_epoch, total)
        yield from task.train_batches(max(start, first), end, device, state.neighbours)


def _neighbours(task: _Task, network) -> Tensor:
    """(N, k) int64: each train image and its k - 1 nearest neighbours, by the embeddings of the test-time crops."""
    mine = embed(network, task.test_batches(task.train[distributed.share(len(task.train))]))
    everything = distributed.gather(mine.to(next(network.parameters()).device), len(task.train))
    own = torch.arange(len(task.train))[:, None]
    if task.spec.neighbours == 1:
        return own
    return torch.cat([own, metrics.nearest(everything, task.spec.neighbours - 1).cpu()], dim=1)


def _step(spec, network, loss, optimizer, batch: Tensor, labels: Tensor, step: int) -> Tensor:
    """One optimisation step; returns the loss, still on the device so that nothing waits for it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        embeddings = distributed.gather(network(batch), len(labels))
        try:
            value = loss(embeddings, labels)
        except ValueError as error:  # a loss names the argument; here the cause and the step are known
            if not all(values.isfinite().all() for values in (embeddings, *loss.parameters())):
                raise FloatingPointError(f"training diverged before step {step}; lower lr or loss_lr") from error
            raise
    value.backward()
    distributed.average_gradients(loss)
    if spec.loss_clip_value is not None:
        nn.utils.clip_grad_value_(loss.parameters(), spec.loss_clip_value)
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    optimizer.step()
    return value.detach()


class _Schedule:
    """What happens at which step."""

    def __init__(self, spec: RunSpec, steps_per_epoch: int):
        def steps(epochs: float) -> int:
            return round(epochs * steps_per_epoch)

        self.steps_per_epoch = steps_per_epoch
        self.total = spec.steps if spec.steps is not None else steps(spec.epochs)
        self.warmup = steps(spec.warmup_epochs)
        self.drops, self.drop = [steps(epochs) for epochs in spec.lr_drop_epochs], spec.lr_drop
        self.eval_every = spec.eval_every or (spec.eval_every_epochs and max(steps(spec.eval_every_epochs), 1))
        self.validation_only = spec.fold is not None and spec.restore_best

    def rate(self, step: int) -> float:
        """Factor of every learning rate."""
        return self.drop ** sum(step >= at for at in self.drops)

    def evaluates(self, step: int) -> bool:
        return bool(self.eval_every) and (step % self.eval_every == 0 or step == self.total)

    def epoch_ends(self, step: int) -> bool:
        return step % self.steps_per_epoch == 0


def _optimizer(spec: RunSpec, network, loss) -> torch.optim.Optimizer:
    """One group for each pair of learning rate and weight decay among trunk, head and the loss's parameters."""
    names = dict(loss.named_parameters())
    unknown = set(spec.loss_lr) - set(names) - {"*"}
    if unknown:
        raise ValueError(f"loss_lr names {sorted(unknown)}, but {spec.loss} has the parameters {sorted(names)}")
    together: dict[tuple[float, float], list] = {}  # every group costs a pass of the optimiser
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    together.setdefault((spec.lr, spec.weight_decay), []).extend(trunk)
    together.setdefault((spec.head_lr or spec.lr, spec.weight_decay), []).extend(network.head.parameters())
    for name, parameter in names.items():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        together.setdefault((rate, spec.loss_weight_decay), []).append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in together.items()
        if parameters
    ]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)


class _State:
    """What a checkpoint holds: enough to continue as if nothing had happened."""

    def __init__(self, spec, network, loss, optimizer, total: int):
        self.spec, self.network, self.loss, self.optimizer = spec, network, loss, optimizer
        self.step = 0
        self.losses = torch.zeros(total, device=next(network.parameters()).device)
        self.history: list[dict] = []
        self.best: dict | None = None  # step, value and weights of the best evaluation, for restore_best
        self.neighbours: Tensor | None = None  # of every train image in the current epoch

    def record(self, rows: list[dict]) -> bool:
        """Keep an evaluation; True when the monitored metric has not improved for `patience` of them."""
        self.history += rows
        criterion = self.spec.monitor if self.spec.fold is None else f"val {self.spec.monitor}"
        values = [row["value"] for row in self.history if row["metric"] == criterion]
        best = int(np.argmax(values))  # the first of equals
        if self.spec.restore_best and best == len(values) - 1:
            self.best = {"step": self.step, "network": _copy(self.network), "loss": _copy(self.loss)}
        return self.spec.patience is not None and len(values) - 1 - best >= self.spec.patience

    def restore_best(self) -> int:
        """Put the best weights back; returns their step."""
        self.network.load_state_dict(self.best["network"])
        self.loss.load_state_dict(self.best["loss"])
        return self.best["step"]

    def check_finite(self) -> None:
        """Looked at once per evaluation, not per step: reading the loss back would stall the device."""
        bad = (~self.losses[: self.step].isfinite()).nonzero()
        if len(bad):
            raise FloatingPointError(
                f"the loss became {self.losses[bad[0, 0]].item()} at step {bad[0, 0].item()}; lower lr or loss_lr"
            )

    def save(self, path: Path) -> None:
        if distributed.rank() > 0:
            return
        content = {
            "spec": self.spec.as_dict(),
            "step": self.step,
            "losses": self.losses,
            "history": self.history,
            "network": self.network.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "neighbours": self.neighbours,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(content, temporary)

    def load(self, path: Path) -> None:
        content = torch.load(path, map_location=self.losses.device, weights_only=True)
        if content["spec"] != self.spec.as_dict():
            changed = [name for name, value in self.spec.as_dict().items() if content["spec"].get(name) != value]
            raise ValueError(f"checkpoint {path} belongs to another spec (differs in {', '.join(changed)}); remove it")
        self.step, self.losses, self.history = content["step"], content["losses"], content["history"]
        self.network.load_state_dict(content["network"])
        self.loss.load_state_dict(content["loss"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.best, self.neighbours = content["best"], content["neighbours"]
        if self.neighbours is not None:
            self.neighbours = self.neighbours.cpu()  # the sampler is there


def _evaluate(task: _Task, network, step: int, *, validation_only: bool = False) -> tuple[list[dict], Tensor | None]:
    """Metric rows and the test embeddings; with a held-out fold, its metrics are named `val ...`."""
    manifest, rows, embeddings = task.manifest, [], None
    if len(task.validation):
        everything = np.ones(len(task.validation), bool)
        scores, _ = _retrieve(task, network, task.validation, everything, everything)
        rows += [{"step": step, "metric": f"val {name}", "value": value} for name, value in scores.items()]
    if not validation_only:
        query, gallery = manifest.is_query[task.test], manifest.is_gallery[task.test]
        scores, embeddings = _retrieve(task, network, task.test, query, gallery)
        rows += [{"step": step, "metric": name, "value": value} for name, value in scores.items()]
    return rows, embeddings


def _retrieve(task: _Task, network, indices: np.ndarray, query: np.ndarray, gallery: np.ndarray):
    """Scores, and the embeddings (N, D) on the CPU, of images of which `query` search and `gallery` are searched."""
    device = next(network.parameters()).device
    mine = embed(network, task.test_batches(indices[distributed.share(len(indices))]))
    embeddings = distributed.gather(mine.to(device), len(indices))
    if not embeddings.isfinite().all():
        raise FloatingPointError("the embeddings of the evaluated images are not finite; lower lr or loss_lr")
    labels = torch.from_numpy(task.manifest.labels[indices]).to(device)
    return distributed.from_first(lambda: score(embeddings, labels, query, gallery, task.spec.ks)), embeddings.cpu()


def score(embeddings: Tensor, labels: Tensor, query: np.ndarray, gallery: np.ndarray, ks) -> dict[str, float]:
    """`metrics.retrieval` of the query images in the gallery images, each image left out of its own list."""
    if (query & gallery).all():
        return metrics.retrieval(embeddings, labels, ks)
    if (query & gallery).any():
        raise ValueError("is_query and is_gallery must be equal or disjoint, or an image would find itself")
    query, gallery = torch.from_numpy(query), torch.from_numpy(gallery)
    return metrics.retrieval(
        embeddings[query], labels[query], ks, gallery=embeddings[gallery], gallery_labels=labels[gallery]
    )


def _class_means(task: _Task, network) -> Tensor:
    """(C, D) mean raw embedding of each train class, before training."""
    embeddings = embed(network, task.test_batches(task.train))
    labels = torch.from_numpy(task.train_labels)
    sums = torch.zeros(task.num_classes, embeddings.shape[1]).index_add_(0, labels, embeddings)
    return sums / labels.bincount(minlength=task.num_classes)[:, None]


def _perturb(network: nn.Module, spec: RunSpec) -> None:
    if spec.initial_noise:
        generator = torch.Generator().manual_seed(_mix(spec.seed, "initial_noise"))
        with torch.no_grad():
            for parameter in network.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                parameter.mul_(1 + spec.initial_noise * noise)


def _on_cpu(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in _copy(module).items()}


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _mix(seed: int, *words) -> int:
    """An independent 63-bit stream seed for each purpose."""
    text = ":".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _bar(description: str | None, total: int, initial: int):
    from tqdm import tqdm

    # disable=None: silent when stderr is not a terminal
    silent = description is None or distributed.rank() > 0
    return tqdm(total=total, initial=initial, desc=description, disable=True if silent else None)
