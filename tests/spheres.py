"""Draws, and quadrature on the circle and the sphere, for tests of densities."""

import math

import numpy as np
import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def quadrature(dim: int, n: int = 200) -> tuple[Tensor, Tensor]:
    """Points and weights on S^1 (dim 2) or S^2 (dim 3)."""
    angle = 2 * math.pi * (torch.arange(2 * n, dtype=torch.float64) + 0.5) / (2 * n)
    if dim == 2:
        return torch.stack([angle.cos(), angle.sin()], 1), torch.full((2 * n,), math.pi / n, dtype=torch.float64)
    height, weight = map(torch.from_numpy, np.polynomial.legendre.leggauss(n))
    radius = (1 - height**2).sqrt()[:, None]
    points = torch.stack([radius * angle.cos(), radius * angle.sin(), height[:, None].expand(n, 2 * n)], -1)
    return points.view(-1, 3), (weight[:, None] * math.pi / n).expand(n, 2 * n).reshape(-1)
