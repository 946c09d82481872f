"""What the studies of several papers need: rows of a table, measurements of a finished run, published numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.analysis import results, stored, summaries, tables
from experiments.datasets import manifests
from experiments.figures import charts
from experiments.figures.style import PLAIN, Names
from experiments.params import Params
from experiments.training import activations, batches, inference, protocols, records
from experiments.training.builders import build_loss
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


def study_rows(params: Params, rows: Iterable[dict[str, Any]], **columns: object) -> pd.DataFrame:
    """A tidy table of a study without images; columns: what else all rows have."""
    common = {"paper": params.paper, "experiment": params.notebook, "profile": params.profile, "dataset": "synthetic"}
    return results.frame([common | columns | row for row in rows])


def measured(
    run: RunResult, measure: Callable[..., dict[str, float]], setting: str | None = None, **options: Any
) -> protocols.Scored:
    """`scored` values of `measure(run, **options)`, measured once, see `records.derived`."""
    return scored(run, records.derived([run], measure, **options), setting)


def scored(run: RunResult, values: Mapping[str, float], setting: str | None = None) -> protocols.Scored:
    """Values of a finished run as rows of its last step."""
    step = max(row["step"] for row in run.rows)
    rows = [{"selection": "last", "step": step, "metric": name, "value": value} for name, value in values.items()]
    return protocols.Scored(run.spec if setting is None else run.spec.replace(setting=setting), run.dataset, rows)


def with_measures(
    finished: Iterable[RunResult], measures: Callable[..., Iterable[protocols.Scored]], params: Params
) -> pd.DataFrame:
    """The rows of finished runs, and below them what the `measures` of a study, see `Study`, find on each."""
    finished = list(finished)
    return with_measured(finished, [measurement for run in finished for measurement in measures(run, params)], params)


def with_measured(finished: Iterable, measurements: Iterable[protocols.Scored], params: Params) -> pd.DataFrame:
    """The rows of finished runs, and below them what was measured on them."""
    parts = [list(finished), list(measurements)]
    return pd.concat([results.tidy(part, params) for part in parts if part], ignore_index=True)


def evaluated_labels(run: RunResult) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Labels (N,) of a run's test images, and which are queries and gallery."""
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    return torch.from_numpy(manifest.labels[test]), manifest.is_query[test], manifest.is_gallery[test]


def training_embeddings(run: RunResult, per_class: int | None = None) -> tuple[manifests.Manifest, Tensor, Tensor]:
    """Manifest, embeddings (N, D) of the training images in evaluation mode, and their labels (N,).

    The labels are those that were trained on, wrong ones included. per_class: the first so many of each; None: all.
    """
    manifest = batches.load_dataset(run.spec)
    images = manifest.indices("train")
    if per_class is not None:
        labels = manifest.labels[images]
        images = np.sort(np.concatenate([images[labels == label][:per_class] for label in np.unique(labels)]))
    return manifest, embedded(run, manifest, images), torch.from_numpy(manifest.labels[images])


def embedded(run: RunResult, manifest: manifests.Manifest, images: np.ndarray) -> Tensor:
    """Embeddings (N, D) of images of a finished run's data set in evaluation mode."""
    network = run.network(manifest=manifest)
    if run.spec.train_from is None:
        return inference.embed_images(run.spec, network, manifest, images)
    # many runs share what lies below their tails, and it is in the cache since they were trained
    tail, stored = activations.cut(run.spec, network, manifest)
    return inference.embed(tail, stored.evaluated(images))


def trained_loss(run: RunResult, manifest: manifests.Manifest, embedding_size: int, **options: Any) -> torch.nn.Module:
    """The loss of a finished run as training left it; options replace those of its spec."""
    spec = run.spec.replace(loss_options={**run.spec.loss_options, **options})
    loss = build_loss(spec, manifest.num_train_classes, embedding_size)
    loss.load_state_dict(run.loss_state())
    return loss


def with_histories(runs: Iterable[RunSpec]) -> list[RunSpec]:
    """The same runs, of which the first seed of every method that is trained under the conventional protocol keeps its
    evaluations, or five. All notebooks that have such a run ask for it in this way, so that it is trained once."""
    kept = []
    for run in runs:
        if run.loss and run.seed == 0 and run.protocol == "conventional":
            five = {"eval_every": max(run.steps // 5, 1)} if run.steps else {"eval_every_epochs": (run.epochs or 1) / 5}
            run = run.replace(keep_history=True, **({} if run.eval_every or run.eval_every_epochs else five))
        kept.append(run)
    return kept


def without_histories(table: pd.DataFrame) -> pd.DataFrame:
    """A table without what the first seed alone has of the evaluations that `with_histories` keeps, its best one among
    them: no mean over seeds may count it."""
    run = ["protocol", "method", "setting"]
    seeds = table.groupby(run)["seed"].transform("nunique")
    of_selection = table.groupby([*run, "selection"])["seed"].transform("nunique")
    return table[(of_selection == seeds) & ~_kept(table)]


def histories_apart(table: pd.DataFrame) -> pd.DataFrame:
    """The same, but that the R@1 of those evaluations stands last, as setting CURVE."""
    recalls = table[_kept(table) & (table["metric"] == "R@1")]
    return pd.concat([without_histories(table), recalls.assign(setting=tables.CURVE)], ignore_index=True)


def _kept(table: pd.DataFrame) -> pd.Series:
    return (table["selection"] == "every") & (table["protocol"] == "conventional")


def convergence(table: pd.DataFrame, names: Names = PLAIN) -> None:
    """Show how R@1 grew in the first seed's runs."""
    import matplotlib.pyplot as plt
    from IPython.display import Markdown, display

    try:
        histories = tables.histories(table, "R@1")
    except tables.MissingRows:
        display(Markdown("Only runs under the conventional protocol are evaluated during training."))
        return
    ranked = dict(sorted(histories.items(), key=lambda item: -item[1][1][-1]))
    title = f"{stored.setup_in_words(table)}, seed 0"
    display(drawn := charts.lines(ranked, "step", "R@1 (%)", title=title, names=names))
    plt.close(drawn)


def published(paper: str, table: str | Sequence[str], **where: str | float | Iterable[str | float]) -> pd.DataFrame:
    """Rows of one of a paper's tables, its methods named as in ours."""
    return summaries.published(paper, table, **where).replace({"method": summaries.printed_names(paper)})


def published_curve(paper: str, figure: str) -> dict[str, dict[float, float]]:
    """Recall@1 of a panel of a paper's figure where it is known: {data set: {level: value}}."""
    curves: dict[str, dict[float, float]] = {}
    for row in summaries.published(f"{paper}_figures", figure).itertuples():
        (level,) = map(float, tables.settings_of(row.split_or_setting).values())
        curves.setdefault(row.dataset, {})[level] = row.value
    return curves
