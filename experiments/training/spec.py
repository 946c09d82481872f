"""RunSpec: everything that determines a training run, as plain data."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from experiments.networks import backbones
from experiments.training.builders import OPTIMIZERS, algorithm_builder, build_loss

LABELS = ("method", "setting", "protocol")  # fields that name a run and do not change it
RECORDED = {"algorithm": "scheme", "algorithm_options": "scheme_options"}  # fields that runs on record call otherwise

# What the numbers of a spec are, where they are not None.
POSITIVE_WHOLE = (
    *("images_per_class", "folds", "embedding_size", "image_size", "test_resize", "steps", "epochs", "batch_size"),
    "cached_views",
    *("views", "samples_per_class", "neighbours", "eval_every", "patience", "threads"),
)
HEAD_STARTS = ("pca", "whitened")
LEAST_CROPS = 8  # that are kept of an image, where a step shows it in several
WHOLE = ("fold", "seed", "replica")  # 0 is one of them
POSITIVE = ("lr", "head_lr", "lr_drop", "clip_value", "clip_norm", "loss_clip_value", "eval_every_epochs")
NOT_NEGATIVE = ("label_noise", "weight_decay", "loss_weight_decay", "warmup_epochs")


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one training run. Two equal specs give the same numbers on one machine.

    A field that is added later has to default to None, False or something empty: the key of a run leaves such values
    out, so that earlier runs keep their keys.
    """

    # the images, and which of them are trained on
    dataset: str
    label_noise: float = 0.0  # this fraction of the train labels becomes another class, drawn uniformly
    images_per_class: int | None = None  # how many are rendered; the embedded glyphs alone take it
    fold: int | None = None  # this part of the train classes is held out for validation; None: none is
    folds: int = 4  # the train classes are cut into so many disjoint parts, numbered from 0
    # the network
    backbone: str = "conv4"
    weights: str | None = None  # "imagenet", "symbols" (of conv4) or a file; None: drawn from the seed
    embedding_size: int | None = 128  # None: the pooled features are the embeddings, there is no head
    # the head before training: "pca" and "whitened" are fitted to the features of the training images; None: drawn
    head_start: str | None = None
    pooling: str = "avg"
    image_size: int | None = None  # side of the square crops in pixels; None: images are taken as they are
    crop_scale: tuple[float, float] = (0.16, 1.0)  # a training crop covers a share of the image between these two
    test_resize: int | None = None  # short side before the centre crop of a test image, in pixels; None: image_size
    original_images: bool = False  # crops are cut from the files, not from copies whose short side is test_resize
    freeze_batchnorm: bool = False  # BatchNorm keeps the statistics and the weights that it starts with
    # what of it is trained: a block of the backbone (see backbones.blocks) and all behind it, on activations that are
    # computed once; "head": the head alone; None: everything
    train_from: str | None = None
    # views of a training image whose activations are kept, None: 1; the centre crop, its mirror image, or for more than
    # two as many random crops. A batch shows each image in one of them
    cached_views: int | None = None
    # what a step optimises: a file of training/algorithms and the options that its Algorithm takes
    algorithm: str = "supervised"
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    # the loss: "<module>.<name>" under dmlrepro.losses; None: the network is evaluated as it is, nothing is trained
    loss: str | None = None
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    # learning rates by parameter of the loss, "*": the others; else lr
    loss_lr: Mapping[str, float] = field(default_factory=dict)
    loss_clip_value: float | None = None  # bound of each entry of a gradient, for the parameters of the loss only
    proxies_from_class_means: bool = False  # proxies start at the mean embeddings of their classes
    # optimisation; a run that trains gives exactly one of steps and epochs
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 100
    views: int = 1  # each image of a batch is shown in so many random crops; batch_size counts it once
    samples_per_class: int | None = None  # every class in a batch has so many images; None: shuffled batches
    neighbours: int | None = None  # batches are groups of so many images that lie together, found anew for every epoch
    optimizer: str = "adamw"
    lr: float = 1e-4
    head_lr: float | None = None  # None: lr
    weight_decay: float = 1e-4  # of the network
    loss_weight_decay: float | None = None  # of the parameters of the loss; None: none
    warmup_epochs: float = 0.0  # the trunk does not learn before then
    lr_drop_epochs: tuple[float, ...] = ()  # at each of these, every learning rate is multiplied by lr_drop
    lr_drop: float = 0.5
    clip_value: float | None = None  # bound of each entry of every gradient
    clip_norm: float | None = None  # bound of the norm of all gradients together
    # evaluation; without eval_every and eval_every_epochs, once after the last step
    ks: tuple[int, ...] = (1, 2, 4, 8)  # ranks K of Recall@K
    eval_every: int | None = None  # steps
    eval_every_epochs: float | None = None
    monitor: str = "P@1"  # picks the best evaluation, on the validation classes if a fold is held out, else on test
    patience: int | None = None  # training stops when the last so many evaluations were all no better than the best
    restore_best: bool = False  # the run leaves the weights of the best evaluation behind, not the last ones
    keep_history: bool = False  # the rows of every evaluation are part of the result, as selection "every"
    # the machine
    seed: int = 0
    threads: int | None = None  # CPU threads; None: as many as the process has
    precision: str = "float32"  # "bfloat16": autocast in training; every published score is of float32
    compile: bool = False  # torch compiles the network
    replica: int = 0  # 0: the run itself; others start from slightly perturbed weights, for the golden tolerances
    # labels for the tables; they do not change the run
    method: str = ""
    setting: str = ""
    protocol: str = "conventional"

    def __post_init__(self):
        for name in ("crop_scale", "lr_drop_epochs", "ks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.loss is not None and (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give exactly one of steps and epochs, got steps={self.steps}, epochs={self.epochs}")
        self._check_numbers()
        if self.eval_every is not None and self.eval_every_epochs is not None:
            raise ValueError("give at most one of eval_every (steps) and eval_every_epochs")
        wants_evaluations = self.patience or self.restore_best or self.keep_history
        if self.eval_every is None and self.eval_every_epochs is None and wants_evaluations:
            raise ValueError("patience, restore_best and keep_history need eval_every or eval_every_epochs")
        monitors = ("P@1", "RP", "MAP@R", "mAP@1000", *(f"R@{k}" for k in self.ks))
        if self.monitor not in monitors:
            raise ValueError(f"monitor must be one of {', '.join(monitors)}, got {self.monitor!r}")
        if self.fold is not None and not 0 <= self.fold < self.folds:
            raise ValueError(f"fold must lie in [0, {self.folds}), the number of folds, got {self.fold}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; choose one of {sorted(OPTIMIZERS)}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', got {self.precision!r}")
        for name in ("views", "cached_views"):
            if (getattr(self, name) or 1) > 1 and self.image_size is None:
                raise ValueError(f"{name}={getattr(self, name)}: views are crops; give image_size")
        if self.train_from is not None:
            backbones.check_block(self.backbone, self.train_from)
            if self.views > 1 and (self.cached_views or 1) < LEAST_CROPS:
                raise ValueError(
                    f"views={self.views} with train_from={self.train_from!r}: random crops are drawn once; give "
                    f"cached_views of at least {LEAST_CROPS}, got {self.cached_views}"
                )
        elif self.cached_views is not None:
            raise ValueError("cached_views is of runs with train_from; give a block or 'head'")
        if self.neighbours is not None and self.samples_per_class is not None:
            raise ValueError("give at most one of samples_per_class and neighbours")
        for name in ("samples_per_class", "neighbours"):
            size = getattr(self, name)
            if self.loss is not None and size is not None and self.batch_size % size:
                raise ValueError(f"batch_size must be a multiple of {name} = {size}, got {self.batch_size}")
        if self.pooling not in backbones.POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(backbones.POOLINGS)}, got {self.pooling!r}")
        if self.head_start not in (None, *HEAD_STARTS) or (self.head_start and not self.embedding_size):
            raise ValueError(
                f"head_start must be one of {', '.join(HEAD_STARTS)} or None, and needs an embedding_size, got "
                f"{self.head_start!r} with embedding_size={self.embedding_size}"
            )
        backbones.weights_file(self.backbone, self.weights)
        _check_algorithm(self.algorithm, _written("algorithm_options", self.algorithm_options))
        if self.loss is not None:
            self._check_loss(self.loss)

    def _check_loss(self, loss: str) -> None:
        """ValueError unless the loss takes its options, and has the parameters whose rates are given."""
        options = _written("loss_options", self.loss_options)
        # pooled features have a length that is not known here; 128 suits all
        parameters, initialised = _tried(loss, options, self.embedding_size or 128)
        if unknown := sorted(set(self.loss_lr) - parameters - {"*"}):
            raise ValueError(f"loss_lr names {unknown}, but {loss} has the parameters {sorted(parameters)}")
        if self.proxies_from_class_means and not initialised:
            raise ValueError(f"proxies_from_class_means: the loss {loss} has no initialize_proxies(class_means)")

    def _check_numbers(self) -> None:
        types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(self)}
        for names, what in (
            (POSITIVE_WHOLE, "a positive whole number"),
            (WHOLE, "a whole number from 0 up"),
            (POSITIVE, "positive and finite"),
            (NOT_NEGATIVE, "finite and at least 0"),
        ):
            for name in names:
                value, optional = getattr(self, name), isinstance(None, types[name])
                bounded = _is_number(value, whole="whole" in what) and (value > 0 or (value == 0 and "0" in what))
                if not bounded and not (optional and value is None):
                    raise ValueError(f"{name} must be {what}{' or None' * optional}, got {value!r}")
        if self.label_noise >= 1:
            raise ValueError(f"label_noise must be a fraction in [0, 1), got {self.label_noise}")
        if self.lr_drop > 1:
            raise ValueError(f"lr_drop must be a factor in (0, 1], got {self.lr_drop}")
        for name, rates in (("loss_lr", self.loss_lr), ("lr_drop_epochs", dict(enumerate(self.lr_drop_epochs)))):
            for key, value in rates.items():
                if not _is_number(value) or value < 0:
                    raise ValueError(f"{name}[{key!r}] must be finite and at least 0, got {value!r}")
        if len(self.crop_scale) != 2 or not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(f"crop_scale must be two increasing shares in (0, 1], got {self.crop_scale}")
        if not self.ks or not all(_is_number(k, whole=True) and k > 0 for k in self.ks):
            raise ValueError(f"ks must be ranks from 1 up, got {self.ks}")
        if self.image_size and self.test_resize and self.test_resize < self.image_size:
            raise ValueError(
                f"test_resize must be at least image_size = {self.image_size}, whose crop is cut from it, "
                f"got {self.test_resize}"
            )

    def as_dict(self) -> dict:
        """What determines the numbers: every field but the labels, as plain data, by the names on record."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in LABELS]
        content = {RECORDED.get(name, name): getattr(self, name) for name in names}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in content.items()}

    def replace(self, **changes: Any) -> "RunSpec":
        return dataclasses.replace(self, **changes)


def from_record(content: Mapping[str, Any], **fields: Any) -> RunSpec:
    """The spec whose `as_dict` is on record; fields: others, as its labels."""
    names = {recorded: name for name, recorded in RECORDED.items()}
    return RunSpec(**{names.get(name, name): value for name, value in content.items()} | fields)


def _written(name: str, options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(options), sort_keys=True)
    except TypeError as error:
        raise ValueError(f"{name} must be numbers, words and lists of them ({error})") from error


@functools.cache
def _check_algorithm(name: str, options: str) -> None:
    algorithm_builder(name, json.loads(options))


@functools.cache
def _tried(loss: str, options: str, embedding_size: int) -> tuple[frozenset[str], bool]:
    """The parameters of a loss built for two classes, and whether its proxies can start at class means."""
    built = build_loss(SimpleNamespace(loss=loss, loss_options=json.loads(options), seed=0), 2, embedding_size)
    return frozenset(name for name, _ in built.named_parameters()), hasattr(built, "initialize_proxies")


def _is_number(value: Any, whole: bool = False) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool) and math.isfinite(value)
