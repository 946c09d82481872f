"""Notebook 01: which of the losses suits the reader's images?

Every method trains the tail of a network, half a minute each, or at quick and paper a linear head on its features,
which takes seconds. Methods are ranked on classes that are held out of the training part; the seeds take turns in
holding out another part of it. The test classes are scored as well and decide nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from dmlrepro.datasets import images, manifests
from dmlrepro.evidence import results, summaries
from dmlrepro.evidence.statistics import MIN_SEEDS, t_interval
from dmlrepro.evidence.stored import Numbers
from dmlrepro.papers import rooms
from dmlrepro.papers.methods import Method, pick, spec_of
from dmlrepro.papers.notebook import Notebook
from dmlrepro.papers.params import Params, recipe_of
from dmlrepro.training import batches, protocols
from dmlrepro.training.builders import OPTIMIZERS, build_loss
from dmlrepro.training.spec import RunSpec

FOLDS = 4  # parts of the training classes; there are fewer where a part would have a single class
VALIDATION, TEST = "val MAP@R", "MAP@R"


@dataclass(frozen=True)
class YourImagesParams(Params):
    """The parameters of notebook 01."""

    notebook = "01_your_images"
    paper = "together"
    positive: ClassVar = (*Params.positive, "head_lr")
    overrides: ClassVar = {
        "quick": {"train_from": "head", "steps": 100},
        "paper": {"train_from": "head", "steps": 1000, "epochs": 0, "warmup_epochs": 0.0},
    }

    methods: tuple[str, ...] | None = None
    head_lr: float = 0.001  # of a linear head that is trained alone
    embedding_scale: float = 0.0  # of nivMF's distances, see NivmfParams; 0: what its room knows for the backbone

    def _dataset_recipe(self, dataset: str) -> dict:
        """All that are offered; for the reader's images also batches that fit into the smallest training part."""
        everything = {"methods": tuple(offered())}
        own = _batches_of(dataset, self.profile) if manifests.is_own(dataset) else {}
        return everything | own


def offered() -> dict[str, Method]:
    """The methods of all rooms that can be tried on a reader's images, by name."""
    return {name: method for name, method in rooms.methods().items() if method.offered}


def _training_sizes(dataset: str) -> np.ndarray:
    """How many images each training class has."""
    manifest = manifests.load(dataset)
    return np.bincount(manifest.labels[manifest.indices("train")])


def _batches_of(dataset: str, profile: str) -> dict:
    """The profile's batches, made smaller for few images, and of more images per class for few classes."""
    sizes = _training_sizes(dataset)
    folds = folds_of(sizes)
    held_out = np.array_split(np.arange(len(sizes)), folds) if folds else [np.arange(0)]
    kept = [np.delete(sizes, part) for part in held_out]
    recipe = recipe_of(profile, dataset)
    size = int(min(recipe["batch_size"], *(part.sum() for part in kept)))
    per_class = max(min(recipe["samples_per_class"] or 4, size), -(-size // min(len(part) for part in kept)))
    return {"batch_size": size - size % per_class, "samples_per_class": per_class}


def folds_of(sizes: np.ndarray) -> int:
    """Into how many parts training classes of these sizes are cut; 0: none can be held out.

    A part has at least two classes, and one of them two images, or there is nothing to retrieve in it.
    """
    for folds in range(min(FOLDS, len(sizes) // 2), 1, -1):
        if all((part > 1).any() for part in np.array_split(sizes, folds)):
            return folds
    return 0


def your_images(params: YourImagesParams) -> list[RunSpec]:
    """The network's features as they are, and what `train_from` says trained with every method and seed."""
    return [
        spec_of(method, params, seed, **_held_out(params, seed), **(_head(method, params) if method.loss else {}))
        for method in pick(offered(), params.methods)
        for seed in range(params.seeds)
    ]


def _head(method: Method, params: YourImagesParams) -> dict:
    """A head alone is trained from scratch: it takes a method's options for that, whatever the trunk."""
    if params.train_from != "head":
        return {}
    return {"train_from": "head", "head_lr": params.head_lr, "loss_options": method.from_scratch}


def _held_out(params: YourImagesParams, seed: int) -> dict:
    folds = FOLDS
    if manifests.is_own(params.dataset):
        folds = folds_of(_training_sizes(params.dataset))
    return {"fold": seed % folds, "folds": folds} if folds else {}


# tables


def table_of(finished: Iterable, params: YourImagesParams) -> pd.DataFrame:
    """The tidy table. A run's fold is no model of an ensemble here, so each enters by itself."""
    return results.tidy(
        [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished], params
    )


def criterion(table: pd.DataFrame) -> str:
    """What ranks the methods: MAP@R of validation classes, or of the test classes where none could be held out."""
    return VALIDATION if VALIDATION in set(table["metric"]) else TEST


def ranking(table: pd.DataFrame) -> pd.Series:
    """Mean over seeds of the criterion by (method, setting), the best first."""
    rows = table[table["metric"] == criterion(table)]
    return rows.groupby(["method", "setting"])["value"].mean().sort_values(ascending=False, kind="stable")


def comparison(table: pd.DataFrame) -> pd.DataFrame:
    """A row per method in the order of the ranking, with 95 % intervals over seeds."""
    order = {key: place for place, key in enumerate(ranking(table).index)}
    place = [order[key] for key in zip(table["method"], table["setting"])]
    shown = [VALIDATION] * (criterion(table) == VALIDATION) + ["R@1", "RP", TEST]
    found = summaries.pivot(table.assign(place=place).sort_values("place", kind="stable"), shown)
    return found.reorder_levels(["method", "setting", "protocol"]).droplevel("protocol")


def winner(finished: Iterable, table: pd.DataFrame):
    """The run of seed 0 of the method that ranks first; the untrained network cannot win."""
    best = next(key for key in ranking(table).index if key[0] != "untrained")
    return next(run for run in finished if (run.spec.method, run.spec.setting) == best)


def in_words(table: pd.DataFrame) -> None:
    """Print which method ranks first, by what, and how many cannot be told from it."""
    ranked, name = ranking(table), criterion(table)
    by_seed = table[table["metric"] == name].pivot(index="seed", columns=["method", "setting"], values="value")
    trained = [key for key in ranked.index if key[0] != "untrained"]
    best, others = trained[0], trained[1:]
    where = (
        "classes held out of the training part"
        if name == VALIDATION
        else ("the TEST classes, as there are too few training classes to hold some out: the first place is optimistic")
    )
    print(f"Ranked by MAP@R on {where}: {' '.join(filter(None, best))} is first with {ranked[best]:.1f} %.")
    if ("untrained", "") in ranked.index:
        above = sum(ranked[key] > ranked["untrained", ""] for key in trained)
        print(f"The untrained features have {ranked['untrained', '']:.1f} %; {above} of {len(trained)} are above them.")
    if len(by_seed) < MIN_SEEDS:
        print(f"{len(by_seed)} of the {MIN_SEEDS} seeds that tell methods apart: the order is one of single runs.")
        return
    apart = sum(t_interval((by_seed[best] - by_seed[key]).to_numpy())[0] > 0 for key in others)
    print(
        f"Over {len(by_seed)} seeds, {len(others) - apart} of the {len(others)} others cannot be told from the first "
        "(paired 95 % t interval of the difference)."
    )


def seconds(finished: Iterable) -> pd.DataFrame:
    """Mean seconds of a run by method, and optimisation steps per second, the fastest first."""
    costs = results.costs(finished).groupby(["method", "setting"])
    return summaries.readable(costs[["seconds", "steps_per_second"]].mean().sort_values("seconds"), 1)


# the data


def describe(dataset: str) -> None:
    """Print what `data check` prints, and what of it will be felt."""
    print(manifests.check(dataset))
    manifest = manifests.load(dataset)
    if manifests.is_own(dataset):
        print(images.survey(manifest))
    sizes = _training_sizes(dataset)
    if alone := [manifest.class_names[label] for label in np.flatnonzero(sizes == 1)]:
        print(
            f"WARNING: {len(alone)} training classes have one image, where losses on pairs find no pair: {_few(alone)}"
        )
    if not folds_of(sizes):
        print(
            f"WARNING: {len(sizes)} training classes are too few to hold some out; methods are ranked by test classes"
        )
    elif len(sizes) < 20:
        print(f"WARNING: {len(sizes)} training classes are few; the ranking may differ with other classes")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


# the reader's own script


def code_of(spec: RunSpec, num_classes: int, dim: int) -> str:
    """Python that trains with a run's loss, options, learning rates and clipping in a script of the reader's.

    The script has `network`, a module with a `trunk` and a `head`, `images` and `labels`, and for losses whose proxies
    start at the class means also `class_means` (C, D).

    Args:
        num_classes: C training classes, with labels 0 to C - 1.
        dim: D, of the embeddings that `network` returns.
    """
    module, _, name = spec.loss.partition(".")
    options = "".join(f", {option}={value!r}" for option, value in spec.loss_options.items())
    lines = ["import torch", f"from dmlrepro.losses.{module} import {name}", ""]
    lines.append(f"loss = {name}({num_classes}, {dim}{options})")
    if spec.proxies_from_class_means:
        lines.append("loss.initialize_proxies(class_means)  # mean embedding of each class before training")
    lines += [_optimizer(spec, num_classes, dim), "", *_step(spec), "", f"# {_composition(spec)}"]
    return "\n".join(lines)


def code_of_run(run) -> str:
    """`code_of` of a finished run, for all training classes of its data set."""
    return code_of(run.spec, batches.load_dataset(run.spec).num_train_classes, run.embeddings.shape[1])


def _optimizer(spec: RunSpec, num_classes: int, dim: int) -> str:
    """The optimiser with a group for each learning rate, as `loop.build_optimizer` makes them."""
    head = spec.head_lr or spec.lr
    groups = [("network.head.parameters()", head, spec.weight_decay)]
    if spec.train_from != "head":
        groups.insert(0, ("network.trunk.parameters()", spec.lr, spec.weight_decay))
        if head == spec.lr:
            groups = [("network.parameters()", spec.lr, spec.weight_decay)]
    by_rate: dict[float, list[str]] = {}
    for name, _ in build_loss(spec, num_classes, dim).named_parameters():
        by_rate.setdefault(spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr)), []).append(f"loss.{name}")
    for rate, names in by_rate.items():
        groups.append(("loss.parameters()" if len(by_rate) == 1 else f"[{', '.join(names)}]", rate, 0.0))
    texts = [f'    {{"params": {which}, "lr": {rate!r}, "weight_decay": {decay!r}}},' for which, rate, decay in groups]
    optimizer = OPTIMIZERS[spec.optimizer]
    others = "".join(f", {key}={value!r}" for key, value in optimizer.keywords.items() if key != "fused")
    return "\n".join([f"optimizer = torch.optim.{optimizer.func.__name__}([", *texts, f"]{others})"])


def _step(spec: RunSpec) -> list[str]:
    everything = "[parameter for group in optimizer.param_groups for parameter in group['params']]"
    clipped = [
        (f"clip_grad_value_(loss.parameters(), {spec.loss_clip_value!r})", spec.loss_clip_value),
        (f"clip_grad_value_({everything}, {spec.clip_value!r})", spec.clip_value),
        (f"clip_grad_norm_({everything}, {spec.clip_norm!r})", spec.clip_norm),
    ]
    return [
        "# in every step",
        "loss(network(images), labels).backward()",
        *(f"torch.nn.utils.{call}" for call, value in clipped if value is not None),
        "optimizer.step()",
        "optimizer.zero_grad()",
    ]


def _composition(spec: RunSpec) -> str:
    each = spec.samples_per_class
    of_classes = f", {each} of each of {spec.batch_size // each} classes" if each else ", shuffled"
    frozen = {None: "", "head": "; the trunk is frozen"}.get(spec.train_from, f"; frozen below {spec.train_from}")
    return f"batches of {spec.batch_size} images{of_classes}{frozen}"


# --- what was found ---------------------------------------------------------------------------------------------------


def _two_first(numbers: Numbers) -> str:
    losses, metric = _ranked(numbers)
    return (
        f"Of {len(losses)} losses {losses[0]} and {losses[1]} have the largest means: "
        f"{numbers.against(losses[0], losses[1], metric)}."
    )


def _features(numbers: Numbers) -> str:
    heads, metric = _ranked(numbers)
    least, most = (numbers.mean(head, metric) for head in (heads[-1], heads[0]))
    return (
        f"The features as they are have {numbers.mean('untrained', metric):.1f}, the losses {least:.1f} to {most:.1f} "
        f"{metric}."
    )


def _ranked(numbers: Numbers) -> tuple[list[str], str]:
    """The methods by the criterion of `ranking`, and its name."""
    metric = VALIDATION if any(name == VALIDATION for _, name in numbers.cells) else TEST
    return numbers.ranked([method for method in numbers.methods if method != "untrained"], metric, least=2), metric


NOTEBOOKS = [Notebook(YourImagesParams, your_images, table_of, findings=(_two_first, _features))]
