"""What all notebooks would cost on every data set that their claims name, kept as results/plan.csv."""

import functools

import pandas as pd

from experiments.analysis import claims
from experiments.files import repository_root
from experiments.report import catalogue, plan

# the data sets of claims that a profile has, by their short names; each notebook has a default one besides
DATA: dict[str, dict[str, str]] = {
    "quick": {},
    "small": {"cub": "cub-subset", "cars": "cars-subset"},
    "paper": {name: name for name in ("cub", "cars", "sop", "inshop")},
}


@functools.cache
def table() -> pd.DataFrame:
    """Hours by profile, paper, notebook, dataset and device (cpu: one core, gpu: one A100), and `tuning_hours` that a
    search before them takes; `default` is "yes" of the data set that a notebook has if nothing is chosen. A run that
    several notebooks share counts for the first."""
    parts = []
    for profile, data in DATA.items():
        usual = _planned(profile, list(catalogue.studies())).assign(default="yes")
        parts.append(usual)
        had = usual.groupby("notebook")["dataset"].agg(set)
        for short, dataset in data.items():
            names = [name for name in had.index if short in _named(name) and dataset not in had[name]]
            if names:
                parts.append(_planned(profile, names, dataset=dataset).assign(default=""))
    return pd.concat(parts, ignore_index=True)


def _named(notebook: str) -> set[str]:
    """Short names of the data sets that the claims of a notebook name."""
    return {name for claim_id in catalogue.find(notebook).settled for name in claims.named(claim_id)}


def _planned(profile: str, notebooks: list[str], **values: str) -> pd.DataFrame:
    runs, _ = plan.table_of(notebooks, lambda params: params.from_values({"profile": profile} | values))
    tuned = runs["hours"] * runs["trials"] * ((runs["seed"] == 0) & (runs["throughput"] != "shared"))
    summed = runs.assign(tuning_hours=tuned).groupby(["notebook", "dataset", "device"], sort=False)
    hours = summed[["hours", "tuning_hours"]].sum().reset_index()
    papers = [catalogue.find(name).params.paper for name in hours["notebook"]]
    return hours.assign(profile=profile, paper=papers)


def path():
    return repository_root() / "results" / "plan.csv"


def csv() -> str:
    columns = ["profile", "paper", "notebook", "dataset", "default", "device", "hours", "tuning_hours"]
    return table()[columns].to_csv(index=False, float_format="%.3g", lineterminator="\n")
