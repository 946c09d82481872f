"""Notebook 01: which of the losses suits the reader's images?

Every method trains a linear head on the features of a frozen network, which takes seconds. The best of them are then
fine-tuned end to end, on request. Methods are ranked on classes that are held out of the training part; the seeds take
turns in holding out another part of it. The test classes are scored as well and decide nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dmlrepro.datasets import images, manifests
from dmlrepro.evidence import plots, results, tables
from dmlrepro.evidence.statistics import t_interval
from dmlrepro.evidence.stored import Numbers
from dmlrepro.papers import rooms
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import Method, pick, spec_of
from dmlrepro.papers.params import Params, recipe_of
from dmlrepro.training import batches, protocols, runs
from dmlrepro.training.builders import OPTIMIZERS, build_loss
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 4  # parts of the training classes; there are fewer where a part would have a single class
FINE_TUNED = "fine-tuned"
VALIDATION, TEST = "val MAP@R", "MAP@R"
plots.LABELS[VALIDATION] = "validation MAP@R (%)"


@dataclass(frozen=True)
class YourImagesParams(Params):
    """The parameters of notebook 01."""

    notebook = "01_your_images"
    paper = "together"
    positive: ClassVar = (*Params.positive, "head_steps", "head_lr")
    overrides: ClassVar = {
        "quick": {"head_steps": 100},
        "small": {"head_steps": 300},
        "paper": {"head_steps": 1000},
    }

    methods: tuple[str, ...] | None = None
    head_steps: int | None = None
    head_lr: float = 0.001  # of the linear head on frozen features
    fine_tune: int = 0  # how many of the best methods are fine-tuned end to end
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


def heads(params: YourImagesParams) -> list[RunSpec]:
    """The frozen network's features as they are, and a linear head on them for every method and seed.

    A head is trained from scratch, so it takes a method's options for that, whatever the trunk.
    """
    return [
        spec_of(method, params, seed, **_held_out(params, seed), **(_head(method, params) if method.loss else {}))
        for method in pick(offered(), params.methods)
        for seed in range(params.seeds)
    ]


def _head(method: Method, params: YourImagesParams) -> dict:
    return {
        "freeze_trunk": True,
        "head_lr": params.head_lr,
        "steps": params.head_steps,
        "epochs": None,
        "warmup_epochs": 0.0,
        "loss_options": method.from_scratch,
    }


def fine_tuned(names: Iterable[str], params: YourImagesParams) -> list[RunSpec]:
    """Methods by name, trained end to end with the steps or epochs of the parameters."""
    return [
        spec_of(method, params, seed, setting=FINE_TUNED, **_held_out(params, seed))
        for method in pick(offered(), names)
        for seed in range(params.seeds)
    ]


def your_images(params: YourImagesParams) -> list[RunSpec]:
    """Heads, then the best `fine_tune` methods end to end: to know these, the heads are trained first."""
    specs = heads(params)
    if params.fine_tune < 1:
        return specs
    ranked = ranking(table_of(runs.run_all(specs), params))
    best = [method for method, _ in ranked.index if method != "untrained"][: params.fine_tune]
    return specs + fine_tuned(best, params)


def planned(params: YourImagesParams) -> list[RunSpec]:
    """The same without training: the first methods stand for the best ones, which cost about as much."""
    specs = heads(params)
    trained = list(dict.fromkeys(spec.method for spec in specs if spec.loss))
    return specs + fine_tuned(trained[: params.fine_tune], params)


def _held_out(params: YourImagesParams, seed: int) -> dict:
    folds = FOLDS
    if manifests.is_own(params.dataset):
        folds = folds_of(_training_sizes(params.dataset))
    return {"fold": seed % folds, "folds": folds} if folds else {}


# tables


def table_of(finished: Iterable, params: YourImagesParams) -> "pd.DataFrame":
    """The tidy table. A run's fold is no model of an ensemble here, so each enters by itself."""
    return results.tidy(
        [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished], params
    )


def criterion(table: "pd.DataFrame") -> str:
    """What ranks the methods: MAP@R of validation classes, or of the test classes where none could be held out."""
    return VALIDATION if VALIDATION in set(table["metric"]) else TEST


def ranking(table: "pd.DataFrame") -> "pd.Series":
    """Mean over seeds of the criterion by (method, setting), the best first."""
    rows = table[table["metric"] == criterion(table)]
    return rows.groupby(["method", "setting"])["value"].mean().sort_values(ascending=False, kind="stable")


def comparison(table: "pd.DataFrame") -> "pd.DataFrame":
    """A row per method in the order of the ranking, with 95 % intervals over seeds."""
    order = {key: place for place, key in enumerate(ranking(table).index)}
    place = [order[key] for key in zip(table["method"], table["setting"])]
    shown = [VALIDATION] * (criterion(table) == VALIDATION) + ["R@1", "RP", TEST]
    found = results.pivot(table.assign(place=place).sort_values("place", kind="stable"), shown)
    return found.reorder_levels(["method", "setting", "protocol"]).droplevel("protocol")


def winner(finished: Iterable, table: "pd.DataFrame"):
    """The run of seed 0 of the method that ranks first; the untrained network cannot win."""
    best = next(key for key in ranking(table).index if key[0] != "untrained")
    return next(run for run in finished if (run.spec.method, run.spec.setting) == best)


def in_words(table: "pd.DataFrame") -> None:
    """Print which method ranks first, by what, and how many cannot be told from it."""
    ranked, name = ranking(table), criterion(table)
    by_seed = table[table["metric"] == name].pivot(index="seed", columns=["method", "setting"], values="value")
    trained = [key for key in ranked.index if key[0] != "untrained"]
    best, others = trained[0], trained[1:]
    apart = [t_interval((by_seed[best] - by_seed[key]).to_numpy())[0] > 0 for key in others] if len(by_seed) > 1 else []
    where = (
        "classes held out of the training part"
        if name == VALIDATION
        else ("the TEST classes, as there are too few training classes to hold some out: the first place is optimistic")
    )
    print(f"Ranked by MAP@R on {where}: {' '.join(filter(None, best))} is first with {ranked[best]:.1f} %.")
    if ("untrained", "") in ranked.index:
        better = sum(ranked[key] > ranked["untrained", ""] for key in trained)
        print(
            f"The untrained features have {ranked['untrained', '']:.1f} %; {better} of {len(trained)} are above them."
        )
    print(
        f"Over {len(by_seed)} seed{'s' * (len(by_seed) > 1)}, {len(others) - sum(apart)} of the {len(others)} others "
        "cannot be told from the first (paired 95 % t interval of the difference)."
    )


def seconds(finished: Iterable) -> "pd.DataFrame":
    """Mean seconds of a run by method, and optimisation steps per second, the fastest first."""
    costs = results.costs(finished).groupby(["method", "setting"])
    return results.readable(costs[["seconds", "steps_per_second"]].mean().sort_values("seconds"), 1)


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
    if not spec.freeze_trunk:
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
    return f"batches of {spec.batch_size} images{of_classes}" + ("; the trunk is frozen" if spec.freeze_trunk else "")


# --- what was found ---------------------------------------------------------------------------------------------------


def _first(numbers: Numbers) -> str:
    ranked, metric = _ranked(numbers)
    heads = [method for method in ranked if method != "untrained"]
    if len(heads) < 2:
        raise tables.MissingRows("two methods")
    return (
        f"{heads[0]} ranks first of {len(heads)} losses: {numbers.against(heads[0], heads[1], metric)} of {heads[1]}."
    )


def _above_untrained(numbers: Numbers) -> str:
    ranked, metric = _ranked(numbers)
    above = ranked.index("untrained") if "untrained" in ranked else None
    if above is None:
        raise tables.MissingRows(f"untrained ({metric})")
    return (
        f"{above or 'None'} of {len(ranked) - 1} heads lie above the features as they are, which have "
        f"{numbers.mean('untrained', metric):.1f} {metric}."
    )


def _ranked(numbers: Numbers) -> tuple[list[str], str]:
    """The methods by the criterion of `ranking`, heads alone, and its name."""
    metric = VALIDATION if any(name == VALIDATION for _, name in numbers.cells) else TEST
    return numbers.ranked(numbers.methods, metric), metric


NOTEBOOKS = [Notebook(YourImagesParams, your_images, table_of, planned, findings=(_first, _above_untrained))]
