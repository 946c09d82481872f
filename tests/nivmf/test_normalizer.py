"""Notebook 23: the fit, the best concentration and the densities against independent computations."""

import numpy as np
import pytest
import scipy.special
import torch

from dmlrepro import vmf
from experiments.nivmf import normalizer


def test_the_error_of_the_fit_is_that_of_scipys_bessel_function():
    kappa = np.arange(10, 51)
    exact = 63 * np.log(kappa) - 64 * np.log(2 * np.pi) - np.log(scipy.special.ive(63, kappa)) - kappa
    relative = (127 - 0.01909 * kappa - 0.003355 * kappa**2) / exact - 1
    rows = normalizer._fit_errors(128, 0.9)
    assert rows["rms_relative_error"] == pytest.approx(100 * np.sqrt(np.mean(relative**2)), rel=1e-6)
    assert rows["slope_exceeds_1_at"] == pytest.approx((1 - 0.01909) / (2 * 0.003355))


@pytest.mark.parametrize("dim", [128, 512])
def test_the_best_concentration_has_the_samples_cosine_as_its_mean_cosine(dim):
    best = normalizer.best_concentration(dim, 0.9, "exact")
    assert vmf.mean_resultant_length(torch.tensor(best, dtype=torch.float64), dim).item() == pytest.approx(
        0.9, abs=1e-9
    )
    assert normalizer.best_concentration(dim, 0.9, "quadratic") < best / 4


def test_the_heuristic_density_integrates_to_the_concentrations_and_the_exact_one_to_one():
    assert normalizer.density_integral((20.0, 20.0, 20.0), "heuristic") == pytest.approx(400, rel=1e-4)
    assert normalizer.density_integral((20.0, 5.0, 50.0), "exact") == pytest.approx(1, abs=1e-4)
