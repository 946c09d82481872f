"""What 00_tour trains: one loss on the embedded glyphs, and the network as it begins."""

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from experiments.analysis import results
from experiments.figures import images
from experiments.figures.style import PALETTE, described, panels
from experiments.methods import pick, runs_of
from experiments.params import parameters
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.pfml.methods import NAMES as NAMES
from experiments.studies import with_histories
from experiments.training import batches, runs


def six_points(before: runs.RunResult, after: runs.RunResult, seed: int = 0) -> Figure:
    """Three test images of each of two classes where two networks put them: the plane through their embeddings that
    shows most of the distances, one scale for both."""
    manifest = batches.load_dataset(after.spec)
    test = manifest.indices("test")
    labels = manifest.labels[test]
    two = np.random.default_rng(seed).choice(np.unique(labels), 2, replace=False)
    six = np.concatenate([np.flatnonzero(labels == label)[:3] for label in two])
    with panels(2, 4.2, sharex=True, sharey=True, grid=False) as (figure, axes):
        from matplotlib.offsetbox import AnnotationBbox, OffsetImage

        for axis, run, title in zip(axes, (before, after), ("before training", "after training")):
            points = F.normalize(run.embeddings[six], dim=1)
            left, size, _ = torch.linalg.svd(points - points.mean(0), full_matrices=False)
            places = left[:, :2] * size[:2]
            axis.scatter(places[:, 0], places[:, 1], alpha=0)
            for (x, y), image, label in zip(places.tolist(), images.thumbnails(manifest, test[six]), labels[six]):
                look = {"edgecolor": PALETTE[0 if label == two[0] else 2], "linewidth": 2.5}
                picture = OffsetImage(image, zoom=32 / max(np.shape(image)[:2]), cmap="gray")
                axis.add_artist(AnnotationBbox(picture, (x, y), pad=0.15, bboxprops=look))
            axis.set(title=title, xlabel="coordinate 1", aspect="equal")
            axis.margins(0.2)
        axes[0].set_ylabel("coordinate 2")
    return described(figure, "Six images of two classes in the plane, before and after training.")


Tour = pfml_study(  # both runs are of notebook 10 too, at every profile
    "00_tour",
    parameters(FieldOptions, method=(str, "PFML")),
    lambda params: with_histories(runs_of(pick(METHODS, ["untrained", params.method]), params)),
    lambda finished, params: results.tidy(finished, params).query("selection == 'last'"),
    profiles={"*": {"seeds": 1}},
)
