"""Notebook 11: training with wrong labels (Table 2)."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from dmlrepro import samplers
from experiments.analysis import summaries
from experiments.methods import expand_seeds, pick, search_each, spec_of
from experiments.params import Number, Params, Whole
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study, published
from experiments.studies import (
    measured,
    trained_loss,
    training_embeddings,
    with_histories,
    with_measures,
    without_histories,
)
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class LabelNoiseParams(FieldOptions, Params):
    """The parameters of notebook 11."""

    methods: tuple[str, ...]
    noise_levels: tuple[Number, ...]
    protocol: str
    search_trials: Whole


def label_noise(params: LabelNoiseParams) -> list[RunSpec]:
    """Every method at every share of wrong training labels; which labels are wrong depends on the seed alone, and a
    search sees right ones. PFML decays as the parameter says, whatever a search has found: it is what the paper says
    mutes wrong labels.

    The runs with clean labels are those of notebooks 10 and 15.
    """
    decay = {"PFML": {"alpha": params.alpha}}
    specs = [spec_of(method, params, loss_options=decay.get(method.name)) for method in pick(METHODS, params.methods)]
    noisy = [
        spec.replace(setting=f"label_noise={level:g}", label_noise=level)
        for spec, _ in search_each(specs, METHODS, params)
        for level in params.noise_levels
    ]
    runs = expand_seeds(noisy, params)
    return [spec for run in runs for spec in (with_histories([run]) if run.label_noise == 0 else [run])]


def noise_table(finished: Iterable[RunResult], params: LabelNoiseParams) -> pd.DataFrame:
    """The rows of finished runs, and at 20 % noise the share of the gradient that wrongly labelled images receive."""
    return without_histories(with_measures(finished, shares_of, params))


def shares_of(run: RunResult, params: LabelNoiseParams) -> list:
    """What `noise_table` adds to a run."""
    return [measured(run, _share)] if run.spec.loss and run.spec.label_noise == 0.2 else []


@measurement("pfml.mislabelled_share")
def _share(run: RunResult) -> dict[str, float]:
    return {"gradient_share": gradient_share(run)}


def gradient_share(run: RunResult, batches: int = 20) -> float:
    """Percent of the gradient's magnitude, at the end of training, that falls on wrongly labelled images.

    In each of some further batches, drawn as in training: the norms of d loss / d unit embedding, those of the wrongly
    labelled images summed, over the sum of all. It equals the share of wrong labels if they weigh like any others.
    """
    manifest, embeddings, labels = training_embeddings(run)
    loss = trained_loss(run, manifest, embeddings.shape[1])
    wrong = torch.from_numpy(np.isin(manifest.indices("train"), manifest.corrupted))
    generator = torch.Generator().manual_seed(run.spec.seed)
    size, per_class = run.spec.batch_size, run.spec.samples_per_class
    if per_class is None:
        drawn = samplers.shuffled(len(labels), size, batches, generator)
    else:
        drawn = samplers.m_per_class(labels, size, per_class, batches, generator)
    shares = []
    for batch in drawn:
        points = F.normalize(embeddings[batch], dim=1).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(points, labels[batch]), points)
        norms = gradient.norm(dim=1)
        if norms.sum() > 0:  # a loss of margins may have nothing left to say
            shares.append(norms[wrong[batch]].sum() / norms.sum())
    return 100 * torch.stack(shares).mean().item()


def noise_drops(table: pd.DataFrame) -> pd.DataFrame:
    """R@1 with clean labels, with 20 % wrong ones, and the drop: ours, and the paper's (Tables 1 and 2, ResNet50).

    The paper has no clean number of its PNCA: Table 1 has Proxy NCA++, a later method, on Cars-196 in a column that the
    text leaves unclear.
    """
    recall = table[(table["metric"] == "R@1") & (table["selection"] == "last")]
    ours = recall.groupby(["method", "setting"], sort=False)["value"].mean().unstack()
    columns = {(f"ours, {recall['dataset'].iloc[0]}", level): ours[f"label_noise={level}"] for level in ("0", "0.2")}
    for dataset in ("CUB-200-2011", "Cars-196"):
        for level, number in (("0", "Table 1"), ("0.2", "Table 2")):
            rows = published(number, dataset=dataset, backbone="ResNet50", metric="R@1")
            one = rows[(rows["method"] != "ProxyNCA++") | (number == "Table 2")].set_index("method")["value"]
            columns[f"published, {dataset}", level] = one.reindex(ours.index)
    for where in dict.fromkeys(where for where, _ in columns):
        columns[where, "drop"] = columns[where, "0"] - columns[where, "0.2"]
    order = sorted(columns, key=lambda pair: list(dict.fromkeys(where for where, _ in columns)).index(pair[0]))
    wide = pd.concat({pair: columns[pair] for pair in order}, axis=1, names=["R@1", "label noise"])
    return summaries.readable(wide, 1)


LabelNoise = pfml_study(
    "11_pfml_label_noise",
    LabelNoiseParams,
    label_noise,
    noise_table,
    shares_of,
    profiles={
        "*": {"methods": ("untrained", "PFML", "ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet")},
        "quick": {"methods": ("untrained", "PFML", "ProxyAnchor"), "noise_levels": (0.0, 0.2, 0.4)},
        "paper": {"noise_levels": (0.0, 0.1, 0.2, 0.3, 0.4)},
        "small": {"noise_levels": (0.0, 0.2)},
    },
    references={"noise_levels": (0.0, 0.2)},
    one_network=True,
    claims=TESTS,
)
