"""Notebook 10: retrieval with PFML and its baselines (Tables 1 and 4 to 7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence import results
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import every_seed, found_by_search, pick, runs_of, search_each, spec_of
from dmlrepro.papers.pfml.methods import METHODS, READINGS, FieldParams
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PfmlRetrievalParams(FieldParams):
    """The parameters of notebook 10."""

    notebook = "10_pfml_retrieval"
    overrides: ClassVar = {
        "quick": {"small_dim": 16, "mlrc_steps": 60},
        "small": {"small_dim": 32, "mlrc_steps": 0},
        # there MLRC is a protocol with settings of its own
        "paper": {"small_dim": 64, "mlrc_steps": 0},
    }

    methods: tuple[str, ...] = (
        "untrained",
        "PFML",
        "CPML",
        "ProxyAnchor",
        "ProxyNCA++",
        "SoftTriple",
        "MultiSimilarity",
        "Contrastive",
        "Triplet",
    )
    protocol: str | None = None
    search_trials: int | None = None  # how many a search for each method's hyperparameters has; 0: no search
    small_dim: int | None = None  # dimension of the small embeddings of Tables 4 and 5; 0: no such runs
    mlrc_steps: int | None = None  # steps of each fold of Tables 6 and 7; 0: no folds


# Which READINGS a profile has: at small each costs as much as a method, at paper a week.
READINGS_AT = {"quick": tuple(READINGS), "small": ("delta_rep=0.3",), "paper": ()}
SMALL_DIM_METHODS = ("PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity")
MLRC_METHODS = ("PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive")


def retrieval(params: PfmlRetrievalParams) -> list[RunSpec]:
    """Table 1 (Tables 6 and 7 with protocol mlrc): every method, every seed, its hyperparameters searched first where
    there are trials. Then, beside the conventional protocol, the two fields as READINGS has them, small embeddings
    (Tables 4, 5) and the folds of MLRC with a small budget (Tables 6, 7)."""
    found = every_seed([spec for spec, _ in search_each(_specs(params), METHODS, params)], params)
    if params.protocol == "conventional":
        for setting in READINGS_AT[params.profile]:
            method, change = READINGS[setting]
            if method in params.methods:
                found += runs_of([METHODS[method]], params, setting=setting, **change)
    if params.protocol == "conventional" and params.small_dim:
        dim = params.small_dim
        # quick shows a direction: half the steps will do
        budget = {"steps": params.steps // 2} if params.profile == "quick" and params.steps > 1 else {}
        small = _specs(params, SMALL_DIM_METHODS, embedding_size=dim, setting=f"dim={dim}", **budget)
        found += every_seed(small, params)
    if params.protocol == "conventional" and params.mlrc_steps:
        steps = params.mlrc_steps
        twice = {"eval_every": max(steps // 2, 1), "eval_every_epochs": None}
        short = _specs(params, MLRC_METHODS, steps=steps, epochs=None, **twice)
        found += every_seed(short, params, "mlrc")
    return found


def readings_summary(table: "pd.DataFrame", metrics: Sequence[str]) -> "pd.DataFrame":
    """The two fields under the conventional protocol, as everywhere and as READINGS has them; see `results.pivot`."""
    shown = (table["protocol"] == "conventional") & table["method"].isin(method for method, _ in READINGS.values())
    rows = results.pivot(table[shown & table["setting"].isin(["", *READINGS])], metrics)
    return rows.droplevel("protocol").rename(index={"": "as everywhere"})


def tuned(params: PfmlRetrievalParams):
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_specs(params), METHODS, params)


def _specs(params: PfmlRetrievalParams, among: Iterable[str] | None = None, **how) -> list[RunSpec]:
    """The parameters' methods, or those of `among` that they have."""
    names = params.methods if among is None else [name for name in among if name in params.methods]
    return [spec_of(method, params, **how) for method in pick(METHODS, names)]


NOTEBOOKS = [Notebook(PfmlRetrievalParams, retrieval)]
