"""Figures of the idea of nivMF, for notebook 20: densities on a sphere, and the overlap that is a distance."""

import math

import torch
from matplotlib.figure import Figure

from dmlrepro.losses.nivmf import nivmf_log_density
from experiments.figures.style import described, panels

TOWARDS_READER = (0.3, -0.9, 0.3)  # the mode of all densities that are drawn


def spheres(
    concentrations: tuple[float, ...] = (2.0, 10.0, 50.0), stretched: tuple[float, ...] = (5.0, 10.0, 20.0)
) -> Figure:
    """Densities on the sphere, relative to their peak, seen from the front: vMFs of these concentrations, and a nivMF
    with one concentration per coordinate. Brighter is denser."""
    mode = torch.nn.functional.normalize(torch.tensor([TOWARDS_READER], dtype=torch.float64), dim=1)
    axis = torch.linspace(-1, 1, 161, dtype=torch.float64)
    height, side = torch.meshgrid(axis, axis, indexing="ij")
    depth = (1 - side.square() - height.square()).clamp_min(0).sqrt()
    points = torch.stack([side, -depth, height], 2).flatten(0, 1)
    outside = side.square() + height.square() > 1
    drawn = {f"vMF, κ = {kappa:g}": torch.full((1, 3), kappa, dtype=torch.float64) for kappa in concentrations}
    drawn[f"nivMF, K = diag({', '.join(f'{kappa:g}' for kappa in stretched)})"] = torch.tensor([stretched]).double()
    with panels(len(drawn), 2.7, grid=False) as (figure, axes):
        for panel, (title, kappa) in zip(axes, drawn.items()):
            density = nivmf_log_density(points, mode, kappa)[:, 0].view_as(side)
            relative = (density - density[~outside].max()).exp().masked_fill(outside, math.nan)
            image = panel.imshow(relative.numpy(), vmin=0, vmax=1, origin="lower", extent=(-1, 1, -1, 1))
            panel.set(title=title, xticks=[], yticks=[], frame_on=False)
        figure.colorbar(image, ax=axes, label="density / peak", shrink=0.8)
    return described(figure, "Three vMF densities of growing concentration and one nivMF density, on spheres.")
