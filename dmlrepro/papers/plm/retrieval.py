"""Notebook 50: retrieval with PLM and its unsupervised baselines (Table 1)."""

from dataclasses import dataclass

from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.plm.methods import METHODS, PlmParams, unlabelled_runs
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class PlmRetrievalParams(PlmParams):
    """The parameters of notebook 50."""

    notebook = "50_plm_retrieval"

    methods: tuple[str, ...] = tuple(METHODS)


def retrieval(params: PlmRetrievalParams) -> list[RunSpec]:
    """Every method, every seed, beside the untrained network's features."""
    return unlabelled_runs(params.methods, params)


NOTEBOOKS = [Notebook(PlmRetrievalParams, retrieval)]
