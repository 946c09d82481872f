"""Notebook 01 on images without labels: what can be trained there, and what can be said of it where nothing is scored.

Which images belong together nobody knows, so that nothing is recommended: the reader looks at the neighbours that each
candidate finds for the same images. One number needs no labels: how many neighbours a candidate leaves as they were.
"""

from collections.abc import Iterable, Sequence

from dmlrepro import retrieval
from experiments.datasets import manifests
from experiments.params import Params
from experiments.plm.methods import NEIGHBOURS
from experiments.plm.retrieval import Retrieval
from experiments.training import records
from experiments.training.protocols import Scored
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

METHODS = ("PLM", "STML-style", "K-Means")  # similarity from pieces, from neighbours of neighbours, from clusters
LEAST = 40  # training images: fewer make no batches of neighbours
KEPT = "kept_neighbours"
NEAREST = 5  # neighbours that are compared


def is_without_labels(dataset: str) -> bool:
    """Whether a data set has no labels; only the reader's own images can have none."""
    return manifests.is_own(dataset) and not manifests.load(dataset).labelled


def trained(params: Params, methods: Sequence[str], head_start: str | None) -> list[RunSpec]:
    """One run of each method at the settings of notebook 50, none on too few images; its head begins at `head_start`.

    What the reader of notebook 01 gave counts here as well, where notebook 50 has such a parameter.
    """
    images = len(manifests.load(params.dataset).indices("train"))
    if images < LEAST:
        return []
    usual = Retrieval.configured({"profile": params.profile, "dataset": params.dataset})
    group = 2 * NEIGHBOURS  # a head has groups of so many
    fitting = {
        "seeds": 1,
        "methods": list(methods),
        "embedding_size": params.embedding_size,
        "batch_size": min(usual.batch_size, images // group * group),
        "clusters": min(usual.clusters, images // NEIGHBOURS),
    }
    given = {name: value for name, value in params.as_dict().items() if params.origins[name] == "reader"}
    theirs = {name: value for name, value in given.items() if hasattr(usual, name)}
    specs = Retrieval.specs(Retrieval.configured(fitting | theirs | {"methods": list(methods)}))
    return [spec.replace(head_start=head_start) for spec in specs if not spec.setting]


def rows_of(finished: Sequence[RunResult]) -> Iterable[Scored]:
    """Of each run how many of the NEAREST neighbours of a test image are those of the first run, a share."""
    for run in finished:
        value = records.derived([run, finished[0]], _kept)
        row = {"selection": "last", "step": run.spec.steps or 0, "metric": KEPT, "value": value}
        yield Scored(run.spec, run.dataset, [row])


def _kept(run: RunResult, start: RunResult) -> float:
    k = min(NEAREST, len(run.embeddings) - 1)
    ours, theirs = (retrieval.nearest(side.embeddings, k) for side in (run, start))
    return (ours[:, :, None] == theirs[:, None]).any(2).double().mean().item()
