"""The training loop: a pure function of a RunSpec.

A RunSpec is plain data. `train(spec)` loads the dataset, builds the network and the loss, optimises,
evaluates, and returns everything a
notebook needs: metric rows, the loss curve, the embeddings of the evaluated images, and the learned weights. Every
random draw is a function of
`spec.seed` and the step, so a run that was interrupted and resumed is the run that was not.
"""

import dataclasses
import hashlib
import importlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dmlrepro import backbones, datasets, images, metrics, samplers
from dmlrepro.files import replacing

CHECKPOINT_SECONDS = 300


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one training run. Two equal specs give the same numbers on one machine."""

    # data
    dataset: str
    label_noise: float = 0.0  # fraction of train labels replaced by a uniformly random other class
    images_per_class: int | None = None  # embedded glyphs only
    fold: int | None = None  # train without this class-disjoint quarter of the train classes and validate on it (MLRC)
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
    proxies_from_class_means: bool = False
    # optimisation: exactly one of steps and epochs
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 100
    samples_per_class: int | None = None  # None: shuffled batches; else M per class
    optimizer: str = "adamw"
    lr: float = 1e-4
    head_lr: float | None = None  # None: lr
    weight_decay: float = 1e-4
    warmup_steps: int = 0  # the trunk is frozen for so many steps
    lr_drop_every: int | None = None  # steps between multiplications of every learning rate by lr_drop
    lr_drop: float = 0.5
    clip_value: float | None = None
    clip_norm: float | None = None
    # evaluation
    ks: tuple[int, ...] = (1, 2, 4, 8)
    eval_every: int | None = None  # steps; None: after the last step only
    patience: int | None = None  # evaluations without improvement of the validation (else test) MAP@R before stopping
    # machine
    seed: int = 0
    threads: int | None = None  # CPU threads; None: all
    precision: str = "float32"  # "bfloat16": autocast on CUDA
    initial_noise: float = 0.0  # relative noise on the initial weights, for the tolerances of the golden numbers
    # labels for the tables; they do not change the run
    method: str = ""
    setting: str = ""
    protocol: str = "conventional"

    def __post_init__(self):
        for name in ("crop_scale", "ks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.loss is not None and (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give exactly one of steps and epochs, got steps={self.steps}, epochs={self.epochs}")
        for name in ("steps", "epochs", "batch_size", "lr"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; choose one of {sorted(OPTIMIZERS)}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', got {self.precision!r}")
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
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": lambda groups, **kwargs: torch.optim.RMSprop(groups, momentum=0.9, **kwargs),
}


@dataclass
class Outcome:
    """What a run leaves behind.

    rows: list of {selection, step, metric, value}; recalls and precisions are fractions.
    losses: (steps,) float32, the training loss of every step.
    embeddings: (N, D) raw embeddings of the test images after the last step, in manifest order of the test split.
    network_state, loss_state: state dicts after the last step.
    cost: {seconds, steps_per_second}; never part of a deterministic table.
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


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file to resume from when it exists, written every few minutes, removed at the end.
        progress: description of the progress bar; None or a stderr that is not a terminal: silent.

    Raises:
        ValueError: naming the spec's field that does not fit the dataset, the backbone or the loss.
        FloatingPointError: when the loss stops being finite, with the step.
    """
    started = time.perf_counter()
    device = device_for_training()
    manifest = load_dataset(spec)
    network = build_network(spec, manifest).to(device)
    _perturb(network, spec)
    features = None
    if spec.freeze_trunk:
        features = trunk_features(spec, network, manifest)
        network = HeadOnly(network)
    task = _Task(spec, manifest, features)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    if spec.loss is None:
        rows, embeddings = _evaluate(task, network, 0)
        cost = {"seconds": time.perf_counter() - started}
        return Outcome(
            [row | {"selection": "last"} for row in rows], torch.zeros(0), embeddings, _on_cpu(network), {}, cost
        )

    loss = build_loss(spec, task.num_classes, network.embedding_size).to(device)
    if spec.proxies_from_class_means:
        loss.init_proxies(_class_means(task, network))
    optimizer = _optimizer(spec, network, loss)
    total = spec.steps if spec.steps is not None else spec.epochs * task.steps_per_epoch
    state = _State(spec, network, loss, optimizer, total)
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint)

    network.train()
    saved_at = time.monotonic()
    first = state.step
    stepping = time.perf_counter()
    with _bar(progress, total, first) as bar:
        for batch, labels in task.train_batches(first, total, device):
            state.losses[state.step] = _step(spec, network, loss, optimizer, batch, labels, state.step)
            state.step += 1
            bar.update()
            if spec.eval_every and (state.step % spec.eval_every == 0 or state.step == total):
                state.check_finite()
                rows, _ = _evaluate(task, network, state.step)
                state.history.extend(rows)
                if _stalled(state.history, spec.patience):
                    break
            if checkpoint is not None and time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                state.save(checkpoint)
                saved_at = time.monotonic()
    stepping = time.perf_counter() - stepping
    state.check_finite()
    rows, embeddings = _evaluate(task, network, state.step)
    outcome = Outcome(
        rows=select_rows(rows, state.history),
        losses=state.losses[: state.step].clone(),
        embeddings=embeddings,
        network_state=_on_cpu(network),
        loss_state=_on_cpu(loss),
        cost={
            "seconds": time.perf_counter() - started,
            "steps_per_second": (state.step - first) / max(stepping, 1e-9),
        },
    )
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
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
    if spec.freeze_batchnorm:
        backbones.freeze_batchnorm(network)
    return network


@torch.no_grad()
def embed(network: backbones.EmbeddingNet, batches: Iterator[Tensor]) -> Tensor:
    """Raw embeddings (N, D) float32 on the CPU of uint8 image batches, in evaluation mode."""
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    parts = [network(batch.to(device)).float().cpu() for batch in batches]
    network.train(was_training)
    return torch.cat(parts)


def embed_images(spec: RunSpec, network: backbones.EmbeddingNet, manifest: datasets.Manifest, indices) -> Tensor:
    """Embeddings (len(indices), D) of the given images of a dataset with the spec's test-time crop."""
    store = images.open_images(manifest, short_side=_stored_side(spec))
    return embed(network, _test_batches(spec, store, np.asarray(indices)))


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


def select_rows(last: list[dict], history: list[dict]) -> list[dict]:
    """Rows of the last step, and of the best step by validation and by test R@1 when there were several evaluations.

    A score picked on the test set is marked `test_best` and never stands alone: `last` is always there.
    """
    rows = [row | {"selection": "last"} for row in last]
    for selection, criterion in (("val_best", "val MAP@R"), ("test_best", "R@1")):
        candidates = [row for row in history if row["metric"] == criterion]
        if candidates:
            best = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            rows += [row | {"selection": selection} for row in history if row["step"] == best]
    return rows


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
            kept, held_out = datasets.folds(manifest)[spec.fold]
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

    def index_batches(self, total: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(_mix(self.spec.seed, "sampler"))
        size, per_class = self.spec.batch_size, self.spec.samples_per_class
        if per_class is None:
            return samplers.shuffled(len(self.train), size, total, generator)
        return samplers.m_per_class(self.train_labels, size, per_class, total, generator)

    def train_batches(self, first: int, total: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, labels) on the device for steps first..total-1, prepared ahead by threads."""
        labels = torch.from_numpy(self.train_labels)

        def make(step: int, picked: Tensor) -> tuple[Tensor, Tensor]:
            generator = torch.Generator().manual_seed(_mix(self.spec.seed, "augmentation", step))
            indices = self.train[picked.numpy()]
            if self.features is not None:
                batch = self.features[indices]
            elif self.spec.image_size is None:
                batch = images.plain_batch(self.store, indices)
            else:
                batch = images.train_batch(
                    self.store, indices, self.spec.image_size, generator, scale=self.spec.crop_scale
                )
            if device.type == "cuda":
                batch = batch.pin_memory()
            return batch, labels[picked]

        steps = ((step, picked) for step, picked in enumerate(self.index_batches(total)) if step >= first)
        for batch, target in _ahead(make, steps, workers=4 if device.type == "cuda" else 1):
            yield batch.to(device, non_blocking=True), target.to(device, non_blocking=True)

    def test_batches(self, indices: np.ndarray) -> Iterator[Tensor]:
        if self.features is not None:
            return iter(self.features[indices].split(4096))
        return _test_batches(self.spec, self.store, indices)


def _stored_side(spec: RunSpec) -> int | None:
    return None if spec.image_size is None else max(spec.test_resize or spec.image_size, spec.image_size)


def _test_batches(spec: RunSpec, store, indices: np.ndarray, size: int = 256) -> Iterator[Tensor]:
    for start in range(0, len(indices), size):
        chunk = indices[start : start + size]
        if spec.image_size is None:
            yield images.plain_batch(store, chunk)
        else:
            yield images.test_batch(store, chunk, spec.image_size, resize=spec.test_resize)


def _ahead(make: Callable, arguments: Iterator[tuple], workers: int) -> Iterator:
    """make(*arguments) in order, a few computed ahead of the consumer by threads."""
    with ThreadPoolExecutor(workers) as pool:
        pending = []
        for item in arguments:
            pending.append(pool.submit(make, *item))
            if len(pending) > 2 * workers:
                yield pending.pop(0).result()
        for future in pending:
            yield future.result()


def _step(spec, network, loss, optimizer, batch: Tensor, labels: Tensor, step: int) -> Tensor:
    """One optimisation step; returns the loss, still on the device so that nothing waits for it."""
    trained = step >= spec.warmup_steps
    for parameter in network.trunk.parameters():
        parameter.requires_grad_(trained)
    rate = spec.lr_drop ** (step // spec.lr_drop_every) if spec.lr_drop_every else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * rate
    autocast = spec.precision == "bfloat16" and batch.device.type == "cuda"
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=autocast):
        value = loss(network(batch), labels)
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    optimizer.step()
    return value.detach()


def _optimizer(spec: RunSpec, network, loss) -> torch.optim.Optimizer:
    """Groups: trunk, head, and one per parameter of the loss with its own learning rate."""
    names = dict(loss.named_parameters())
    unknown = set(spec.loss_lr) - set(names) - {"*"}
    if unknown:
        raise ValueError(f"loss_lr names {sorted(unknown)}, but {spec.loss} has the parameters {sorted(names)}")
    groups = [
        {"params": list(network.trunk.parameters()), "lr": spec.lr, "weight_decay": spec.weight_decay},
        {"params": list(network.head.parameters()), "lr": spec.head_lr or spec.lr, "weight_decay": spec.weight_decay},
    ]
    for name, parameter in names.items():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        groups.append({"params": [parameter], "lr": rate, "weight_decay": spec.loss_weight_decay})
    groups = [group | {"base_lr": group["lr"]} for group in groups if group["params"]]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)


class _State:
    """What a checkpoint holds: enough to continue as if nothing had happened."""

    def __init__(self, spec, network, loss, optimizer, total: int):
        self.spec, self.network, self.loss, self.optimizer = spec, network, loss, optimizer
        self.step = 0
        self.losses = torch.zeros(total, device=next(network.parameters()).device)
        self.history: list[dict] = []

    def check_finite(self) -> None:
        """Looked at once per evaluation, not per step: reading the loss back would stall the device."""
        bad = (~self.losses[: self.step].isfinite()).nonzero()
        if len(bad):
            raise FloatingPointError(
                f"the loss became {self.losses[bad[0, 0]].item()} at step {bad[0, 0].item()}; lower lr or loss_lr"
            )

    def save(self, path: Path) -> None:
        content = {
            "spec": self.spec.as_dict(),
            "step": self.step,
            "losses": self.losses,
            "history": self.history,
            "network": self.network.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(content, temporary)

    def load(self, path: Path) -> None:
        content = torch.load(path, map_location=self.losses.device, weights_only=True)
        if content["spec"] != self.spec.as_dict():
            changed = [k for k, v in self.spec.as_dict().items() if content["spec"].get(k) != v]
            raise ValueError(f"checkpoint {path} belongs to another spec (differs in {', '.join(changed)}); remove it")
        self.step, self.losses, self.history = content["step"], content["losses"], content["history"]
        self.network.load_state_dict(content["network"])
        self.loss.load_state_dict(content["loss"])
        self.optimizer.load_state_dict(content["optimizer"])


def _evaluate(task: _Task, network, step: int) -> tuple[list[dict], Tensor]:
    """Metric rows and the test embeddings; with a held-out fold, its metrics are named `val ...`."""
    manifest, rows = task.manifest, []
    if len(task.validation):
        embeddings = embed(network, task.test_batches(task.validation))
        scores = metrics.retrieval(embeddings, torch.from_numpy(manifest.labels[task.validation]), task.spec.ks)
        rows += [{"step": step, "metric": f"val {name}", "value": value} for name, value in scores.items()]
    embeddings = embed(network, task.test_batches(task.test))
    labels = torch.from_numpy(manifest.labels[task.test])
    query = torch.from_numpy(manifest.is_query[task.test])
    gallery = torch.from_numpy(manifest.is_gallery[task.test])
    if (query & gallery).all():
        scores = metrics.retrieval(embeddings, labels, task.spec.ks)
    else:
        scores = metrics.retrieval(
            embeddings[query], labels[query], task.spec.ks, gallery=embeddings[gallery], gallery_labels=labels[gallery]
        )
    rows += [{"step": step, "metric": name, "value": value} for name, value in scores.items()]
    return rows, embeddings


def _stalled(history: list[dict], patience: int | None) -> bool:
    if patience is None:
        return False
    criterion = "val MAP@R" if any(row["metric"] == "val MAP@R" for row in history) else "MAP@R"
    values = [row["value"] for row in history if row["metric"] == criterion]
    return len(values) - 1 - int(np.argmax(values)) >= patience


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
    return {
        name: value.detach().cpu().clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)
    }


def _mix(seed: int, *words) -> int:
    """An independent 63-bit stream seed for each purpose."""
    text = ":".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _bar(description: str | None, total: int, initial: int):
    from tqdm import tqdm

    # disable=None: silent when stderr is not a terminal
    return tqdm(total=total, initial=initial, desc=description, disable=True if description is None else None)
