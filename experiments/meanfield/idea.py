"""Figures of the idea of mean field losses, for notebook 31: what acts on an image, and where mean fields go."""

import torch
from matplotlib.figure import Figure

from experiments.figures.style import PALETTE, described, legend, panels
from experiments.meanfield import magnet
from experiments.meanfield.methods import MARGINS, SHARPNESS


def forces(alpha: float = 0.01, anchor: tuple[float, float] = (32.0, 0.1)) -> Figure:
    """Pull of the own class (left) and push of another (right) on one image, against the cosine distance 1 - cos:
    derivatives of the terms of MFCont (Eq. 8), MFCWMS (Eq. 10) and ProxyAnchor, over a sharpness that is a factor."""
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


def pairs_and_fields(per_class: int = 8, steps: int = 120, seed: int = 0) -> Figure:
    """Left: 24 images of three classes and the arrows of a pair loss. Middle: those of a mean field loss, from images
    to three fields. Right: how far fields that start at random lie from their class means in units of the spread of
    the class, as MFCont moves them step by step while the embeddings stay, where classes lie apart or are crowded."""
    generator = torch.Generator().manual_seed(seed)
    middles = torch.tensor([[0.0, 1.0], [-0.9, -0.5], [0.9, -0.5]], dtype=torch.float64)
    images = middles.repeat_interleave(per_class, 0)
    images = images + 0.3 * torch.randn(images.shape, dtype=torch.float64, generator=generator)
    ends = {
        "pairs": torch.combinations(torch.arange(len(images))),
        "images × fields": torch.cartesian_prod(torch.arange(len(images)), len(images) + torch.arange(3)),
    }
    points = torch.cat([images, middles])
    with panels(3, 3.2, grid=False) as (figure, (*drawn, right)):
        for axis, (name, lines) in zip(drawn, ends.items()):
            for line in points[lines]:
                axis.plot(*line.T, color="0.75", linewidth=0.5, zorder=1)
            for cls, color in enumerate(PALETTE[:6:2]):
                x, y = images[cls * per_class : (cls + 1) * per_class].T
                axis.scatter(x, y, s=18, color=color, zorder=2)
                if name != "pairs":
                    x, y = middles[cls].tolist()
                    axis.scatter(x, y, s=140, marker="*", color=color, edgecolor="black", zorder=3)
            axis.set(title=f"{len(lines)} {name}", xticks=[], yticks=[], aspect="equal", frame_on=False)
        for kind, style, color in (("apart", "-", PALETTE[2]), ("crowded", "--", PALETTE[0])):
            embeddings, labels = magnet.classes_of(kind, 0.2, 20, seed)
            fields = torch.randn(8, embeddings.shape[1], dtype=torch.float64, generator=generator).requires_grad_()
            optimizer = torch.optim.Adam([fields], 0.05)
            offsets = []
            for _ in range(steps):
                offsets.append(magnet.field_offset(fields.detach(), embeddings, labels))
                optimizer.zero_grad()
                magnet.loss_pairs()["MFCont"][0](embeddings, labels, fields).backward()
                optimizer.step()
            right.plot(offsets, style, color=color, linewidth=2, label=f"classes {kind}")
        right.axhline(1, color="0.5", linewidth=1, label="as far as an image")
        right.set(xlabel="step", ylabel="distance from mean / spread", title="where fields go", ylim=(0, None))
        right.legend(fontsize="small")
    return described(
        figure, "Pair arrows, arrows to mean fields, and the distance of mean fields from their class means."
    )
