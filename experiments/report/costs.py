"""What runs cost: at `quick` and `small` their number times the median seconds of those on record, at `paper` their
images over one stated throughput."""

import functools
import json
import math
from collections.abc import Container, Sequence

import pandas as pd

from experiments.analysis import claims, saving
from experiments.datasets import manifests
from experiments.files import repository_root
from experiments.params import Params, search_trials_of
from experiments.profiles import benchmark_of
from experiments.report import catalogue
from experiments.study import Study
from experiments.training.loop import Schedule
from experiments.training.spec import RunSpec

# Training images per second of one A100 with 80 GB, for every network: ResNet-50, 224 pixels, TF32, as NVIDIA's
# DeepLearningExamples print it, PyTorch/Classification/ConvNets/resnet50v1.5/README.md, "Training performance"
IMAGES_PER_SECOND, SIZE = 938, 224
EVALUATED = 1 / 3  # of a trained image: a backward pass takes twice as long as a forward pass
# steps of runs that stop early: on sop and inshop the means of CCP's Table I, on smaller sets assumed
EARLY_STOP_STEPS = {"cub": 10_000, "cars": 10_000, "sop": 78_000, "inshop": 101_000}


def of(study: Study, params: Params, but: Container[str] = ()) -> tuple[list[RunSpec], float]:
    """The distinct runs of a notebook, and their hours as those on record took, or at `paper` on one A100, without a
    search before them. but: the `identity` of runs that others pay for."""
    specs = {identity(spec): spec for spec in study.specs_untrained(params)}
    distinct = [spec for name, spec in specs.items() if name not in but]
    at_paper = params.profile == "paper"
    seconds = map(_stated_seconds, distinct) if at_paper else _recorded_seconds(distinct, params.profile, study.name)
    return distinct, sum(seconds) / 3600


def identity(spec: RunSpec) -> str:
    return json.dumps(spec.as_dict(), sort_keys=True)


def _recorded_seconds(specs: Sequence[RunSpec], profile: str, notebook: str) -> list[float]:
    """By the median of each method, and for a method without a run on record by that of all; nan without any."""
    path = repository_root() / "results" / profile / f"{notebook}.cost.csv"
    if not path.exists():
        return [math.nan] * len(specs)
    seconds = pd.read_csv(path).dropna(subset=["seconds", "seed"])
    of_method = seconds.groupby("method")["seconds"].median()
    return [of_method.get(spec.method, seconds["seconds"].median()) for spec in specs]


def _stated_seconds(spec: RunSpec) -> float:
    parts = manifests.OFFICIAL[benchmark_of(spec.dataset)]
    train, test = parts["train"][0], sum(images for name, (images, _) in parts.items() if name != "train")
    images = float(test * EVALUATED)
    if spec.loss is not None:
        schedule = Schedule(spec, max(train // spec.batch_size, 1))
        most = EARLY_STOP_STEPS.get(benchmark_of(spec.dataset), EARLY_STOP_STEPS["cub"])
        steps = min(schedule.total, most) if spec.patience else schedule.total
        looks = math.ceil(steps / schedule.eval_every) if schedule.eval_every else 1
        held_out = test if spec.fold is None else train / spec.folds
        images = steps * spec.batch_size * spec.views + looks * held_out * EVALUATED
    return images * ((spec.image_size or SIZE) / SIZE) ** 2 / IMAGES_PER_SECOND


def described(study: Study, params: Params) -> str:
    """A line on what a notebook trains and costs."""
    specs, hours = of(study, params)
    where = "on one A100" if params.profile == "paper" else "at the seconds of those on record"
    return f"{len(specs)} runs, " + ("none on record" if math.isnan(hours) else f"about {hours:.2g} hours {where}")


@functools.cache
def table() -> pd.DataFrame:
    """`hours` by profile, paper, notebook and dataset, and at `paper` the `tuning_hours` of a search before them, on
    every data set that claims name; `default` where none is chosen. A run that several share counts for the first."""
    rows, paid = [], set[str]()
    for profile in saving.PROFILES:
        for study in catalogue.studies().values():
            usual = study.configured({"profile": profile})
            named = {name for claim_id in study.settled for name in claims.named(claim_id)} & {*EARLY_STOP_STEPS}
            others = sorted(named - {usual.dataset}) if profile == "paper" else []
            further = [study.configured({"profile": profile, "dataset": name}) for name in others]
            for params in (usual, *further):
                specs, hours = of(study, params, paid)
                paid |= set(map(identity, specs))
                tuned = [spec for spec in specs if spec.seed == 0 and spec.loss and search_trials_of(params)]
                tuning = sum(map(_stated_seconds, tuned)) * search_trials_of(params) / 3600
                where = (profile, params.paper, study.name, params.dataset, params is usual)
                rows.append((*where, hours, tuning))
    return pd.DataFrame(rows, columns=["profile", "paper", "notebook", "dataset", "default", "hours", "tuning_hours"])
