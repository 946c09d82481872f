"""Figures of the idea of nivMF, for notebook 20: densities on a sphere, and the overlap that is a distance."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from dmlrepro import vmf
from dmlrepro.losses.nivmf import el_vmf_distance, nivmf_log_density
from experiments.figures.style import PALETTE, described, panels

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


def overlap(sharp: float = 40.0, blurred: float = 2.0, proxy: float = 15.0, degrees: float = 40.0) -> Figure:
    """Left: on a circle the densities of a sharp image, of a blurred one and of a class. Right: the expected-likelihood
    distance from the class by Monte Carlo, against the number of samples, with its exact value."""
    circle = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    at = torch.tensor(math.radians(degrees), dtype=torch.float64)
    own, mode = (torch.stack([angle.cos(), angle.sin()])[None] for angle in (torch.zeros_like(at), at))
    points = torch.stack([circle.cos(), circle.sin()], 1)
    images = {f"sharp image, κ = {sharp:g}": sharp, f"blurred image, κ = {blurred:g}": blurred}
    numbers = [1, 2, 5, 10, 20, 50, 100]
    with panels(2, 3.1) as (figure, (left, right)):
        density = vmf.log_density(points, own[0], torch.tensor(proxy).double()).exp()
        left.fill_between(circle.rad2deg(), density, color="0.8", label=f"class, κ = {proxy:g}")
        for (name, kappa), color in zip(images.items(), PALETTE[::2]):
            density = vmf.log_density(points, mode[0], torch.tensor(kappa).double()).exp()
            left.plot(circle.rad2deg(), density, color=color, label=name)
            exact = el_vmf_distance(kappa * mode, proxy * own).item()
            estimates = [monte_carlo(mode, kappa, own, proxy, number) for number in numbers]
            mean, spread = (torch.stack([f(e) for e in estimates]) for f in (torch.mean, torch.std))
            right.errorbar(numbers, mean, spread, color=color, marker="o", capsize=3)
            right.axhline(exact, color=color, linestyle="--", linewidth=1, label="exact" if kappa == sharp else None)
        left.set(
            title="densities on a circle", xlabel="angle (degrees)", ylabel="density (1 / radian)", xlim=(-120, 160)
        )
        left.legend(fontsize="small")
        right.set(
            title="distance from the class (mean ± sd of 400 estimates)", xlabel="samples of the image", xscale="log"
        )
        right.set(ylabel="−log expected likelihood (nats)", xticks=numbers, xticklabels=numbers)
        right.minorticks_off()
        right.legend(fontsize="small")
    text = "Densities of two images and a class on a circle, and Monte-Carlo estimates of their distances."
    return described(figure, text)


def monte_carlo(mode: Tensor, kappa: float, own: Tensor, proxy: float, number: int, repeats: int = 400) -> Tensor:
    """Estimates (repeats,) of the distance by so many samples each."""
    generator = torch.Generator().manual_seed(number)
    modes = mode.expand(repeats, -1)
    samples = vmf.sample(modes, modes.new_full((repeats,), kappa), number, generator)
    log_likelihood = vmf.log_density(samples, own[0], samples.new_tensor(proxy))
    return math.log(number) - log_likelihood.logsumexp(0)
