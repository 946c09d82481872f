"""Notebook 20: retrieval with EL-nivMF, alone and beside ProxyAnchor (Tables 1 and 2)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import every_seed, found_by_search, pick, search_each, spec_of
from dmlrepro.papers.nivmf.methods import JOINT, METHODS, NivmfParams
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class NivmfRetrievalParams(NivmfParams):
    """The parameters of notebook 20."""

    notebook = "20_nivmf_retrieval"

    methods: tuple[str, ...] = (
        "untrained",
        "ProxyNCA++",
        "EL-nivMF",
        "ProxyAnchor",
        JOINT,
        "MultiSimilarity",
        "Margin",
    )
    search_trials: int | None = None  # how many a search for each method's hyperparameters has; 0: no search


def retrieval(params: NivmfRetrievalParams) -> list[RunSpec]:
    """Table 1: every method, every seed, its hyperparameters searched first where there are trials."""
    return every_seed([spec for spec, _ in search_each(_specs(params), METHODS, params)], params)


def tuned(params: NivmfRetrievalParams) -> "pd.DataFrame | None":
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_specs(params), METHODS, params)


def _specs(params: NivmfRetrievalParams) -> list[RunSpec]:
    return [spec_of(method, params) for method in pick(METHODS, params.methods)]


NOTEBOOKS = [Notebook(NivmfRetrievalParams, retrieval)]
