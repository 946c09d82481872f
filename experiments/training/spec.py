"""RunSpec: everything that determines a training run, as plain data."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from experiments.checks import STRICT, Count, Number, Positive, Whole, checked, refuse_unknown
from experiments.networks import backbones
from experiments.training.builders import OPTIMIZERS, algorithm_module, build_loss

LABELS = ("method", "setting", "protocol")  # fields that name a run and do not change it
RECORDED = {"algorithm": "scheme", "algorithm_options": "scheme_options"}  # fields that runs on record call otherwise
LEAST_CROPS = 8  # that are kept of an image, where a step shows it in several
HeadStart = Literal["pca", "whitened"]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one training run. Two equal specs give the same numbers on one machine.

    A field that is added later has to default to None, False or something empty: the key of a run leaves such values
    out, so that earlier runs keep their keys.
    """

    # the images, and which of them are trained on
    dataset: str
    # this fraction of the train labels becomes another class, drawn uniformly
    label_noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    images_per_class: Count | None = None  # how many are rendered; the embedded glyphs alone take it
    fold: Whole | None = None  # this part of the train classes is held out for validation; None: none is
    folds: Count = 4  # the train classes are cut into so many disjoint parts, numbered from 0
    # the network
    backbone: str = "conv4"
    weights: str | None = None  # "imagenet", "symbols" (of conv4) or a file; None: drawn from the seed
    embedding_size: Count | None = 128  # None: the pooled features are the embeddings, there is no head
    # the head before training: "pca" and "whitened" are fitted to the features of the training images; None: drawn
    head_start: HeadStart | None = None
    pooling: str = "avg"
    image_size: Count | None = None  # side of the square crops in pixels; None: images keep their size
    crop_scale: tuple[Share, Share] = (0.16, 1.0)  # a training crop covers a share of the image between these two
    test_resize: Count | None = None  # short side before the centre crop of a test image, in pixels; None: image_size
    original_images: bool = False  # crops are cut from the files, not from copies whose short side is test_resize
    freeze_batchnorm: bool = False  # BatchNorm keeps the statistics and the weights that it starts with
    # what of it is trained: a block of the backbone (see backbones.blocks) and all behind it, on activations that are
    # computed once; "head": the head alone; None: everything
    train_from: str | None = None
    # views of a training image whose activations are kept, None: 1; the centre crop, its mirror image, or for more than
    # two as many random crops. A batch shows each image in one of them
    cached_views: Count | None = None
    # what a step optimises: a file of training/algorithms and the options that its Algorithm takes
    algorithm: str = "supervised"
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    # the loss: "<module>.<name>" under dmlrepro.losses; None: the network is evaluated as it is, nothing is trained
    loss: str | None = None
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    # learning rates by parameter of the loss, "*": the others; else lr
    loss_lr: Mapping[str, Number] = field(default_factory=dict)
    loss_clip_value: Positive | None = None  # bound of each entry of a gradient, for the parameters of the loss only
    proxies_from_class_means: bool = False  # proxies start at the mean embeddings of their classes
    # optimisation; a run that trains gives exactly one of steps and epochs
    steps: Count | None = None
    epochs: Count | None = None
    batch_size: Count = 100
    views: Count = 1  # each image of a batch is shown in so many random crops; batch_size counts it once
    samples_per_class: Count | None = None  # every class in a batch has so many images; None: shuffled batches
    neighbours: Count | None = None  # batches are groups of so many images that lie together, found for every epoch
    optimizer: str = "adamw"
    lr: Positive = 1e-4
    head_lr: Positive | None = None  # None: lr
    weight_decay: Number = 1e-4  # of the network
    loss_weight_decay: Number | None = None  # of the parameters of the loss; None: none
    warmup_epochs: Number = 0.0  # the trunk does not learn before then
    lr_drop_epochs: tuple[Number, ...] = ()  # at each of these, every learning rate is multiplied by lr_drop
    lr_drop: Share = 0.5
    clip_value: Positive | None = None  # bound of each entry of every gradient
    clip_norm: Positive | None = None  # bound of the norm of all gradients together
    # evaluation; without eval_every and eval_every_epochs, once after the last step
    ks: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 2, 4, 8)  # ranks K of Recall@K
    eval_every: Count | None = None  # steps
    eval_every_epochs: Positive | None = None
    monitor: str = "P@1"  # picks the best evaluation, on the validation classes if a fold is held out, else on test
    patience: Count | None = None  # training stops when the last so many evaluations were all no better than the best
    restore_best: bool = False  # the run leaves the weights of the best evaluation behind, not the last ones
    keep_history: bool = False  # the rows of every evaluation are part of the result, as selection "every"
    # the machine
    seed: Whole = 0
    threads: Count | None = None  # CPU threads; None: as many as the process has
    # "bfloat16": autocast in training; every published score is of float32
    precision: Literal["float32", "bfloat16"] = "float32"
    replica: Whole = 0  # 0: the run itself; others start from slightly perturbed weights, for the golden tolerances
    # labels for the tables; they do not change the run
    method: str = ""
    setting: str = ""
    protocol: str = "conventional"

    def __post_init__(self):
        for name in ("crop_scale", "lr_drop_epochs", "ks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        checked(_types(), vars(self))
        if self.loss is not None and (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give exactly one of steps and epochs, got steps={self.steps}, epochs={self.epochs}")
        if self.crop_scale[0] > self.crop_scale[1]:
            raise ValueError(f"crop_scale must be two increasing shares in (0, 1], got {self.crop_scale}")
        if self.image_size and self.test_resize and self.test_resize < self.image_size:
            raise ValueError(
                f"test_resize must be at least image_size = {self.image_size}, whose crop is cut from it, "
                f"got {self.test_resize}"
            )
        if self.eval_every is not None and self.eval_every_epochs is not None:
            raise ValueError("give at most one of eval_every (steps) and eval_every_epochs")
        wants_evaluations = self.patience or self.restore_best or self.keep_history
        if self.eval_every is None and self.eval_every_epochs is None and wants_evaluations:
            raise ValueError("patience, restore_best and keep_history need eval_every or eval_every_epochs")
        if self.fold is not None and self.fold >= self.folds:
            raise ValueError(f"fold must lie in [0, {self.folds}), the number of folds, got {self.fold}")
        metrics = ("P@1", "RP", "MAP@R", "mAP@1000", *(f"R@{k}" for k in self.ks))
        refuse_unknown("unknown monitor", [self.monitor], metrics)
        refuse_unknown("unknown optimizer", [self.optimizer], OPTIMIZERS)
        refuse_unknown("unknown pooling", [self.pooling], backbones.POOLINGS)
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
        if self.head_start and not self.embedding_size:
            raise ValueError(f"head_start={self.head_start!r} is of a head, and there is none; give an embedding_size")
        backbones.weights_file(self.backbone, self.weights)
        model = algorithm_module(self.algorithm).Options
        refuse_unknown(f"algorithm {self.algorithm!r} has no option", self.algorithm_options, model.model_fields)
        checked(model, self.algorithm_options)
        if self.loss is None:
            return
        try:
            options = json.dumps(dict(self.loss_options), sort_keys=True)
        except TypeError as error:
            raise ValueError(f"loss_options must be numbers, words and lists of them ({error})") from error
        # pooled features have a length that is not known here; 128 suits all
        parameters, initialised = _tried(self.loss, options, self.embedding_size or 128)
        if unknown := sorted(set(self.loss_lr) - parameters - {"*"}):
            raise ValueError(f"loss_lr names {unknown}, but {self.loss} has the parameters {sorted(parameters)}")
        if self.proxies_from_class_means and not initialised:
            raise ValueError(f"proxies_from_class_means: the loss {self.loss} has no initialize_proxies(class_means)")

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


@functools.cache
def _types() -> type[BaseModel]:
    """The types of the fields. What a spec has keeps its own, as a rate of 1, whose record is not that of 1.0."""
    fields: dict[str, Any] = {field.name: (field.type, ...) for field in dataclasses.fields(RunSpec)}
    return create_model("RunSpec", __config__=STRICT, **fields)


@functools.cache
def _tried(loss: str, options: str, embedding_size: int) -> tuple[frozenset[str], bool]:
    """The parameters of a loss built for two classes, and whether its proxies can start at class means."""
    built = build_loss(SimpleNamespace(loss=loss, loss_options=json.loads(options), seed=0), 2, embedding_size)
    return frozenset(name for name, _ in built.named_parameters()), hasattr(built, "initialize_proxies")
