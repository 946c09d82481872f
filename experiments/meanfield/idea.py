"""Figures of the idea of mean field losses, for notebook 31: who acts on whom, and how strongly."""

import math

import torch
from matplotlib.figure import Figure

from experiments.figures.style import PALETTE, described, legend, panels
from experiments.meanfield.methods import MARGINS, SHARPNESS


def interactions(classes: int = 3, samples: int = 8, seed: int = 0) -> Figure:
    """Left: every pair of samples that a pair loss compares. Right: the arrows from samples to mean fields instead."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in (0.5, 2.6, 4.7)][:classes])
    labels = torch.arange(classes).repeat_interleave(samples)
    points = centers[labels] + 0.25 * torch.randn(len(labels), 2, generator=generator)
    fields = torch.stack([points[labels == cls].mean(0) for cls in range(classes)])
    pairs = torch.combinations(torch.arange(len(labels)))
    to_fields = torch.cartesian_prod(torch.arange(len(labels)), torch.arange(classes))
    drawn = {
        f"a pair loss: {len(pairs)} pairs": (points, pairs, labels[pairs[:, 0]] == labels[pairs[:, 1]]),
        f"mean fields: {len(to_fields)} arrows": (fields, to_fields, labels[to_fields[:, 0]] == to_fields[:, 1]),
    }
    with panels(2, 4.2, grid=False, sharex=True, sharey=True) as (figure, axes):
        for axis, (title, (ends, joined, same)) in zip(axes, drawn.items()):
            for own, color, name in ((False, "0.75", "repels"), (True, PALETTE[2], "attracts")):
                for number, (i, j) in enumerate(joined[same == own].tolist()):
                    label = name if number == 0 else None
                    axis.plot(*torch.stack([points[i], ends[j]]).T, color=color, linewidth=0.7, label=label)
            for cls, marker in enumerate("osD"):
                axis.scatter(
                    points[labels == cls, 0],
                    points[labels == cls, 1],
                    marker=marker,
                    color=PALETTE[cls],
                    zorder=3,
                    s=26,
                )
            axis.set(title=title, xlabel="coordinate 1", aspect="equal")
        axes[1].scatter(
            fields[:, 0],
            fields[:, 1],
            marker="*",
            s=240,
            color="white",
            edgecolor="black",
            zorder=4,
            label="mean field",
        )
        axes[0].set_ylabel("coordinate 2")
        legend(figure, axes[1])
    return described(figure, "All pairs of 24 samples on the left, their arrows to three mean fields on the right.")


def forces(alpha: float = 0.01, anchor: tuple[float, float] = (32.0, 0.1)) -> Figure:
    """Pull of the own class (left) and push of another (right) on one image, against the cosine distance 1 - cos.

    MFCont (Eq. 8) and MFCWMS (Eq. 10) with published settings and ProxyAnchor with its own (sharpness, margin): the
    derivatives of their terms, divided by the sharpness where a term has that as a factor, so that all end at 1.
    """
    distance = torch.linspace(0, 2, 401, dtype=torch.float64)
    cosine, (sharp, margin) = 1 - distance, anchor
    beta, delta = SHARPNESS["beta"], SHARPNESS["delta"]
    drawn = {
        "MFCont": (distance > MARGINS["positive_margin"], distance < MARGINS["negative_margin"]),
        "MFCWMS": ((alpha * (delta - cosine)).sigmoid(), (beta * (cosine - delta)).sigmoid()),
        "ProxyAnchor": ((-sharp * (cosine - margin)).sigmoid(), (sharp * (cosine + margin)).sigmoid()),
    }
    with panels(2, 3.0, sharey=True) as (figure, axes):
        for (name, both), style, color in zip(drawn.items(), ("-", "--", ":"), PALETTE[::2]):
            for axis, force in zip(axes, both):
                axis.plot(distance, force, style, color=color, linewidth=2, label=name)
        for axis, title in zip(axes, ("from the own class", "from another class")):
            axis.set(title=title, xlabel="distance 1 − cos")
        axes[0].set_ylabel("force (largest possible: 1)")
        legend(figure, axes[0])
    return described(figure, "Force on an image against its distance from the own class and from another one.")
