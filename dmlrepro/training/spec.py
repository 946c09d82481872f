"""RunSpec: everything that determines a training run, as plain data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from dmlrepro.training.builders import OPTIMIZERS, loss_builder, scheme_builder

LABELS = ("method", "setting", "protocol")  # fields that name a run and do not change it


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
    # what a step optimises: a file of training/schemes, with its options
    scheme: str = "supervised"
    scheme_options: Mapping = field(default_factory=dict)
    # loss: "<module>.<name>" under dmlrepro.losses; None evaluates the network as it is
    loss: str | None = "potential_field.PotentialFieldLoss"
    loss_options: Mapping = field(default_factory=dict)
    loss_lr: Mapping = field(default_factory=dict)  # learning rate by parameter name of the loss, "*" for the rest
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
        scheme_builder(self.scheme, self.scheme_options)

    def as_dict(self) -> dict:
        """What determines the numbers: every field but the labels, as plain data."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in content.items()}
        return {name: value for name, value in plain.items() if name not in LABELS}

    def replace(self, **changes) -> "RunSpec":
        return dataclasses.replace(self, **changes)
