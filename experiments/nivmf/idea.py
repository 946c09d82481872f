"""Figures of the idea of nivMF, for notebook 20: densities on a sphere, and the overlap that is a distance."""

import math

import torch
from matplotlib.figure import Figure

from dmlrepro import vmf
from dmlrepro.losses.nivmf import nivmf_log_density
from experiments.figures.style import PALETTE, described, panels


def spheres() -> Figure:
    """Densities on the sphere, relative to their peak, seen from the front: three vMFs, and a nivMF with one
    concentration per coordinate. Brighter is denser."""
    stretched = (5.0, 10.0, 20.0)
    towards_reader = torch.tensor([[0.3, -0.9, 0.3]], dtype=torch.float64)
    mode = torch.nn.functional.normalize(towards_reader, dim=1)
    axis = torch.linspace(-1, 1, 161, dtype=torch.float64)
    height, side = torch.meshgrid(axis, axis, indexing="ij")
    depth = (1 - side.square() - height.square()).clamp_min(0).sqrt()
    points = torch.stack([side, -depth, height], 2).flatten(0, 1)
    outside = side.square() + height.square() > 1
    drawn = {f"vMF, κ = {kappa:g}": torch.full((1, 3), kappa, dtype=torch.float64) for kappa in (2.0, 10.0, 50.0)}
    drawn[f"nivMF, K = diag({', '.join(f'{kappa:g}' for kappa in stretched)})"] = torch.tensor([stretched]).double()
    with panels(len(drawn), 2.7, grid=False) as (figure, axes):
        for panel, (title, kappa) in zip(axes, drawn.items()):
            density = nivmf_log_density(points, mode, kappa)[:, 0].view_as(side)
            relative = (density - density[~outside].max()).exp().masked_fill(outside, math.nan)
            image = panel.imshow(relative.numpy(), vmin=0, vmax=1, origin="lower", extent=(-1, 1, -1, 1))
            panel.set(title=title, xticks=[], yticks=[], frame_on=False)
        figure.colorbar(image, ax=axes, label="density / peak", shrink=0.8)
    return described(figure, "Three vMF densities of growing concentration and one nivMF density, on spheres.")


def overlap() -> Figure:
    """The expected-likelihood distance on a circle. Left: the densities of an image, a vMF of concentration 20 at 40
    degrees, and of a class, of 10 at 0 degrees; their product, whose area is the likelihood. Right: -log of that area,
    exact and estimated from so many samples of the image, mean and 90 % of 400 estimates."""
    counts, repeats = (1, 2, 5, 10, 20, 50, 100), 400
    generator = torch.Generator().manual_seed(0)
    angles = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    concentration, angle = torch.tensor([20.0], dtype=torch.float64), math.radians(40.0)
    at = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    middle, width = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor(10.0).double()
    of_image = vmf.log_density(circle, at[0], concentration[0]).exp()
    of_class = vmf.log_density(circle, middle, width).exp()
    exact = -torch.trapezoid(of_image * of_class, angles).log().item()
    drawn = vmf.sample(at, concentration, repeats * max(counts), generator)[:, 0].view(repeats, max(counts), 2)
    likelihoods = vmf.log_density(drawn, middle, width).exp()
    estimates = torch.stack([-likelihoods[:, :count].mean(1).log() for count in counts])
    low, high = estimates.quantile(0.05, dim=1), estimates.quantile(0.95, dim=1)
    with panels(2, 3.2) as (figure, (left, right)):
        degrees = angles.rad2deg()
        left.plot(degrees, of_image, color=PALETTE[2], linewidth=2, label="image")
        left.plot(degrees, of_class, "--", color=PALETTE[0], linewidth=2, label="class")
        left.fill_between(degrees, of_image * of_class, color="0.6", label="product")
        left.set(xlabel="angle (degrees)", ylabel="density", xlim=(-90, 150), title="overlap of two densities")
        left.legend(fontsize="small")
        right.fill_between(counts, low, high, color=PALETTE[2], alpha=0.2, linewidth=0, label="90 % of estimates")
        right.plot(counts, estimates.mean(1), "o-", color=PALETTE[2], label="mean estimate")
        right.axhline(exact, color="black", linestyle="--", label="exact")
        right.set(xlabel="samples of the image", ylabel="distance (nats)", xscale="log", title="−log of the overlap")
        right.set_xticks(counts, [str(count) for count in counts])
        right.minorticks_off()
        right.legend(fontsize="small")
    return described(figure, "Overlap of an image's and a class's density on a circle, and its estimate from samples.")
