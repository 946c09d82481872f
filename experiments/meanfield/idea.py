"""The figure of the idea of mean field losses, for notebook 31: how strongly images are pulled and pushed."""

import torch
from matplotlib.figure import Figure

from experiments.figures.style import PALETTE, described, legend, panels
from experiments.meanfield.methods import MARGINS, SHARPNESS


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
