"""Notebook 24: does the norm of an embedding say how certain it is? On images whose ambiguity we control."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro import metrics
from experiments.methods import pick, runs_of
from experiments.nivmf.claims import CORRUPTIONS
from experiments.nivmf.methods import METHODS, NivmfOptions, nivmf_ablation
from experiments.params import parameters
from experiments.studies import evaluated_labels, scored, with_measured
from experiments.training import batches, inference, records
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

STRENGTHS = [0.0, 0.25, 0.5, 0.75]


def certainty(params: Any) -> list[RunSpec]:
    """The untrained network and some distances; all are runs of notebook 22."""
    return runs_of(pick(METHODS, ("untrained", *params.methods)), params)


class Degrade(nn.Module):
    """Takes information from uint8 images (B, C, H, W), at a place drawn per image, the same one for every strength.

    kind: "crop" keeps a square window of the share 1 - strength of the area, enlarged to the full size; "occlusion"
    covers a square of the share `strength` with the image's median; "blur" is a Gaussian whose standard deviation is
    strength / 8 of the height. strength: in [0, 1), 0 leaves the images unchanged.
    """

    def __init__(self, kind: str, strength: float, seed: int = 0):
        super().__init__()
        self.kind, self.strength = kind, strength
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, batch: Tensor) -> Tensor:
        place = torch.rand(len(batch), 2, generator=self.generator).to(batch.device)
        if self.strength == 0:
            return batch
        if self.kind == "blur":
            from torchvision.transforms.v2.functional import gaussian_blur  # takes seconds, and most do not blur

            sigma = self.strength / 8 * batch.shape[2]
            size = 2 * min(int(3 * sigma) + 1, min(batch.shape[2:]) - 1) + 1
            changed = gaussian_blur(gaussian_blur(batch.float(), [1, size], [sigma]), [size, 1], [sigma])
        elif self.kind == "crop":
            changed = _windows(batch.float(), place, (1 - self.strength) ** 0.5)
        else:
            side = self.strength**0.5
            start = place * (1 - side)
            rows, columns = ((torch.arange(n, device=batch.device) + 0.5) / n for n in batch.shape[2:])
            tall = (rows > start[:, :1]) & (rows < start[:, :1] + side)
            wide = (columns > start[:, 1:]) & (columns < start[:, 1:] + side)
            covered = (tall[:, :, None] & wide[:, None, :])[:, None]
            changed = torch.where(covered, batch.flatten(2).median(-1).values[..., None, None], batch).float()
        return changed.round().clamp(0, 255).to(torch.uint8)


def _windows(batch: Tensor, place: Tensor, side: float) -> Tensor:
    """Square windows of a share `side` of each length, at the relative places (B, 2), enlarged to the full size."""
    shift = (2 * place.flip(1) - 1) * (1 - side)
    corners = batch.new_zeros(len(batch), 2, 3)
    corners[:, 0, 0] = corners[:, 1, 1] = side
    corners[:, :, 2] = shift
    grid = F.affine_grid(corners, list(batch.shape), align_corners=False)
    return F.grid_sample(batch, grid, mode="bilinear", padding_mode="border", align_corners=False)


def degraded_embeddings(run: RunResult, kind: str, strength: float) -> Tensor:
    if strength == 0:
        return run.embeddings
    manifest = batches.load_dataset(run.spec)
    network = nn.Sequential(Degrade(kind, strength), run.network())
    return inference.embed_images(run.spec, network, manifest, manifest.indices("test"))


def certainty_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """The rows of the runs; how the embedding norm follows the strength of each corruption; and how well it tells the
    test images that the baseline of the same seed retrieves right from the others (Fig. 9)."""
    finished = list(finished)
    trained = [run for run in finished if run.spec.method in params.methods]
    baselines = {run.spec.seed: run for run in trained if run.spec.method == params.methods[0]}
    measurements = []
    for run in trained:
        models = [run, baselines[run.spec.seed]]
        values = records.derived(models, told_by_norms, corruptions=CORRUPTIONS, strengths=STRENGTHS)
        measurements += [scored(run, measures, setting or None) for setting, measures in values]
    return with_measured(finished, measurements, params)


@measurement("nivmf.certainty")
def told_by_norms(
    run: RunResult, baseline: RunResult, corruptions: Sequence[str], strengths: Sequence[float]
) -> list[tuple[str, dict[str, float]]]:
    """(setting, values): of each corruption how the norm follows its strength and what is left of norm and R@1 at each;
    last how well the norm tells what the baseline retrieves right."""
    found = []
    for kind in corruptions:
        levels = [degraded_embeddings(run, kind, strength) for strength in strengths]
        norms = torch.stack([level.norm(dim=1) for level in levels])
        clean = norms[strengths.index(0)]
        found.append(("", {f"{kind}_correlation": _rank_correlation(norms, strengths)}))
        for strength, level, norm in zip(strengths, levels, norms):
            recall = float(nearest_is_right(run, level).mean())
            values = {"relative_norm": (norm / clean).mean().item(), "R@1": recall}
            found.append((f"corruption={kind};strength={strength:g}", values))
    return [*found, ("", _auroc(run, nearest_is_right(baseline, baseline.embeddings)))]


def nearest_is_right(run: RunResult, points: Tensor) -> np.ndarray:
    """For each test image that is a query, whether its nearest gallery image has its class; points (N, D) are the
    embeddings of the test images."""
    labels, query, gallery = evaluated_labels(run)
    own = bool((query & gallery).all())
    nearest = metrics.nearest(points[query], 1, None if own else points[gallery])[:, 0]
    return (labels[gallery][nearest] == labels[query]).numpy()


def _auroc(run: RunResult, right: np.ndarray) -> dict[str, float]:
    """Area under the ROC curve of the norm, over all queries and after taking each class's mean log norm away; none
    where all or none are right."""
    from sklearn.metrics import roc_auc_score

    if right.all() or not right.any():
        return {}
    labels, query, _ = evaluated_labels(run)
    norms = run.embeddings.norm(dim=1).numpy()[query]
    classes, logs = np.unique(labels.numpy()[query], return_inverse=True)[1], np.log(norms)
    within = logs - (np.bincount(classes, logs) / np.bincount(classes))[classes]
    return {
        "norm_auroc": float(roc_auc_score(right, norms)),
        "norm_auroc_within_class": float(roc_auc_score(right, within)),
    }


def _rank_correlation(norms: Tensor, strengths: Sequence[float]) -> float:
    """Mean over images of Spearman's correlation of strength and norm (levels, N); of equals the first is lower."""
    ranks, order = norms.numpy().argsort(axis=0, kind="stable").argsort(axis=0), np.argsort(np.argsort(strengths))
    deviations = order - order.mean()
    return float((deviations @ ranks).mean() / (deviations @ deviations))


def degraded_examples(run: RunResult) -> tuple[list[list], list[str]]:
    """The first test image at every strength of every corruption, for `images.samples`."""
    manifest = batches.load_dataset(run.spec)
    batch = batches.test_images(run.spec, manifest, manifest.indices("test")[:1])
    rows = [[Degrade(kind, s)(batch)[0].permute(1, 2, 0).numpy() for s in STRENGTHS] for kind in CORRUPTIONS]
    return rows, [*CORRUPTIONS]


Certainty = nivmf_ablation(
    "24_nivmf_norm_is_certainty",
    # the first of the methods is the baseline whose mistakes are predicted
    parameters(NivmfOptions, methods=(tuple[str, ...], ("Cosine", "EL-nivMF"))),
    certainty,
    certainty_table,
    profiles={"paper": {"dataset": "cars"}},
)
