"""Notebook 25: are embeddings more diverse with distributions for proxies? (Table 5)"""

import pandas as pd
from torch import Tensor

from dmlrepro import metrics
from experiments.analysis import summaries
from experiments.analysis.tables import settings_of
from experiments.methods import pick, runs_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import METHODS, NivmfOptions, nivmf_ablation, published
from experiments.params import Params
from experiments.studies import evaluated_labels, measured, training_embeddings
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class DiversityParams(NivmfOptions, Params):
    """The parameters of notebook 25."""

    methods: tuple[str, ...] = ("Cosine", "EL-vMF", "EL-nivMF")


def diversity(params: DiversityParams) -> list[RunSpec]:
    """The untrained network and some distances, all at the network's learning rate of the parameters, whatever their
    searches found: a network that moves farther is less diverse."""
    rates = {name: rate for name, rate in params.spec_options().items() if name in ("lr", "head_lr")}
    return runs_of(pick(METHODS, ("untrained", *params.methods)), params, **rates)


def both_diversities(run: RunResult, params: DiversityParams) -> list:
    """The diversities of Table 5 of a run's training images; of the test images beside them."""
    if run.spec.method not in params.methods:
        return []
    return [measured(run, diversities_of, split="train"), measured(run, diversities_of, "images=test", split="test")]


@measurement("nivmf.diversity")
def diversities_of(run: RunResult, split: str) -> dict[str, float]:
    """`diversities` of a run's embeddings of the images of a split, train or test."""
    if split == "test":
        return diversities(run.embeddings, evaluated_labels(run)[0])
    _, embeddings, labels = training_embeddings(run)
    return diversities(embeddings, labels)


def diversities(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "class_diversity": metrics.class_diversity(embeddings, labels),
        "class_diversity_across": metrics.class_diversity(embeddings, labels, "across"),
        "feature_diversity": metrics.feature_diversity(embeddings),
    }


def relative_diversity(table: pd.DataFrame, baseline: str = "Cosine") -> pd.DataFrame:
    """Table 5: change against the baseline in percent, mean over seeds, ours and the published ones."""
    rows = table[table["metric"].str.contains("diversity") & table["setting"].isin(["", "images=test"])]
    wide = rows.pivot_table(index=["setting", "metric", "seed"], columns="method", values="value")
    change = (100 * (wide.div(wide[baseline], axis=0) - 1)).drop(columns=baseline).groupby(level=[0, 1]).mean()
    change.index = [
        f"{metric}, {settings_of(setting).get('images', 'train')} images" for setting, metric in change.index
    ]
    columns = {f"ours, {rows['dataset'].iloc[0]}: {method}": change[method] for method in change}
    names = {
        "cluster_div_change": "class_diversity, train images",
        "feature_div_change": "feature_diversity, train images",
    }
    for (dataset, step), theirs in published("Table 5 (supp)").groupby(["dataset", "method"]):
        method = step.partition("->d_")[2]
        columns[f"published, {dataset}: {method}"] = theirs.set_index(theirs["metric"].map(names))["value"]
    return summaries.readable(pd.DataFrame(columns), 1)


Diversity = nivmf_ablation("25_nivmf_diversity", DiversityParams, diversity, measures=both_diversities, claims=TESTS)
