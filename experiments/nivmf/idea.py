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
    """The expected-likelihood distance on a circle: the densities of an image, a vMF of concentration 20 at 40 degrees,
    and of a class, of 10 at 0 degrees; their product, of whose area the distance is -log."""
    angles = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    degrees, circle = angles.rad2deg(), torch.stack([angles.cos(), angles.sin()], dim=1)  # steps of half a degree
    concentrations = torch.tensor([20.0, 10.0], dtype=torch.float64)
    of_image, of_class = vmf.log_density(circle[:, None], circle[[440, 360]], concentrations).exp().T
    distance = -torch.trapezoid(of_image * of_class, angles).log().item()
    with panels(1, 2.8) as (figure, (axis,)):
        axis.plot(degrees, of_image, color=PALETTE[2], linewidth=2, label="image")
        axis.plot(degrees, of_class, "--", color=PALETTE[0], linewidth=2, label="class")
        axis.fill_between(degrees, of_image * of_class, color="0.6", label=f"product; distance {distance:.2f}")
        axis.set(xlabel="angle (degrees)", ylabel="density", xlim=(-90, 150))
        axis.legend(fontsize="small")
    return described(figure, "Overlap of an image's and a class's density on a circle.")
