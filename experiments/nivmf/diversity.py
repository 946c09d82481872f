"""Notebook 25: are embeddings more diverse with distributions for proxies? (Table 5)"""

from typing import Any

from dmlrepro import metrics
from experiments.methods import pick, runs_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import METHODS, NivmfOptions, nivmf_ablation
from experiments.params import parameters
from experiments.studies import evaluated_labels, measured, training_embeddings
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


def diversity(params: Any) -> list[RunSpec]:
    """The untrained network and some distances, all at the network's learning rate of the parameters, whatever their
    searches found: a network that moves farther is less diverse."""
    rates = {name: rate for name, rate in params.spec_options().items() if name in ("lr", "head_lr")}
    return runs_of(pick(METHODS, ("untrained", *params.methods)), params, **rates)


def both_diversities(run: RunResult, params: Any) -> list:
    """The diversities of Table 5 of a run's training images; of the test images beside them."""
    if run.spec.method not in params.methods:
        return []
    return [measured(run, diversities_of, split="train"), measured(run, diversities_of, "images=test", split="test")]


@measurement("nivmf.diversity")
def diversities_of(run: RunResult, split: str) -> dict[str, float]:
    """Of a run's embeddings of the images of a split, train or test."""
    if split == "test":
        embeddings, labels = run.embeddings, evaluated_labels(run)[0]
    else:
        _, embeddings, labels = training_embeddings(run)
    return {
        "class_diversity": metrics.class_diversity(embeddings, labels),
        "class_diversity_across": metrics.class_diversity(embeddings, labels, "across"),
        "feature_diversity": metrics.feature_diversity(embeddings),
    }


Diversity = nivmf_ablation(
    "25_nivmf_diversity",
    parameters(NivmfOptions, methods=(tuple[str, ...], ("Cosine", "EL-vMF", "EL-nivMF"))),
    diversity,
    measures=both_diversities,
    claims=TESTS,
)
