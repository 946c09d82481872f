"""Notebook 11: training with wrong labels (Table 2)."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dmlrepro import samplers
from experiments import studies
from experiments.methods import expand_seeds, pick, search_each, spec_of
from experiments.params import Number, Whole, parameters
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


def label_noise(params: Any) -> list[RunSpec]:
    """Every method at every share of wrong training labels; a search sees right ones. PFML decays as the parameter
    says, whatever a search has found: the decay is what the paper says mutes wrong labels."""
    decay = {"PFML": {"alpha": params.alpha}}
    specs = [spec_of(method, params, loss_options=decay.get(method.name)) for method in pick(METHODS, params.methods)]
    noisy = [
        spec.replace(setting=f"label_noise={level:g}", label_noise=level)
        for spec in search_each(specs, METHODS, params)
        for level in params.noise_levels
    ]
    runs = expand_seeds(noisy, params)
    return [spec for run in runs for spec in (studies.with_histories([run]) if run.label_noise == 0 else [run])]


def shares_of(run: RunResult, params: Any) -> list:
    """At 20 % noise the share of the gradient that wrongly labelled images receive."""
    return [studies.measured(run, gradient_share)] if run.spec.loss and run.spec.label_noise == 0.2 else []


@measurement("pfml.mislabelled_share")
def gradient_share(run: RunResult) -> dict[str, float]:
    """Percent of the gradient's magnitude, at the end of training, that falls on wrongly labelled images: of the summed
    norms of d loss / d unit embedding, mean over 20 further batches, drawn as in training."""
    manifest, embeddings, labels = studies.training_embeddings(run)
    loss = studies.trained_loss(run, manifest, embeddings.shape[1])
    wrong = torch.from_numpy(np.isin(manifest.indices("train"), manifest.corrupted))
    generator = torch.Generator().manual_seed(run.spec.seed)
    size, per_class = run.spec.batch_size, run.spec.samples_per_class
    if per_class is None:
        drawn = samplers.shuffled(len(labels), size, 20, generator)
    else:
        drawn = samplers.m_per_class(labels, size, per_class, 20, generator)
    shares = []
    for batch in drawn:
        points = F.normalize(embeddings[batch], dim=1).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(points, labels[batch]), points)
        norms = gradient.norm(dim=1)
        if norms.sum() > 0:  # a loss of margins may have nothing left to say
            shares.append(norms[wrong[batch]].sum() / norms.sum())
    return {"gradient_share": 100 * torch.stack(shares).mean().item()}


LabelNoise = pfml_study(
    "11_pfml_label_noise",
    parameters(
        FieldOptions, methods=tuple[str, ...], noise_levels=tuple[Number, ...], protocol=str, search_trials=Whole
    ),
    label_noise,
    lambda finished, params: studies.without_histories(studies.with_measures(finished, shares_of, params)),
    shares_of,
    profiles={
        "*": {"methods": ("untrained", "PFML", "ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet")},
        "quick": {"methods": ("untrained", "PFML", "ProxyAnchor"), "noise_levels": (0.0, 0.2, 0.4)},
        "paper": {"noise_levels": (0.0, 0.1, 0.2, 0.3, 0.4)},
        "small": {"noise_levels": (0.0, 0.2)},
    },
    references={"noise_levels": (0.0, 0.2)},
    one_network=True,
)
