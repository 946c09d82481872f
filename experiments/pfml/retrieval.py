"""Notebook 10: retrieval with PFML and its baselines (Tables 1 and 4 to 7)."""

from collections.abc import Iterable
from typing import Any

from experiments.analysis import results
from experiments.analysis.tables import START
from experiments.methods import expand_seeds, pick, runs_of, search_each, spec_of
from experiments.params import Whole, parameters
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.studies import histories_apart, with_histories
from experiments.training.spec import RunSpec

TABLE_1 = ("untrained", "PFML", "CPML", "ProxyAnchor", "ProxyNCA++")
TABLE_1 += ("SoftTriple", "MultiSimilarity", "Contrastive", "Triplet")
FARTHER = 0.3  # radius of a repulsion beyond that of Eq. 2, chosen on validation classes of the glyphs
SMALL_DIM_METHODS = ("PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity")
MLRC_METHODS = ("untrained", "PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive")


def retrieval(params: Any) -> list[RunSpec]:
    """Table 1 (Tables 6 and 7 with protocol mlrc), hyperparameters searched first where there are trials. Then, beside
    the conventional protocol, PFML that repels FARTHER, which at paper would take a week, small embeddings (Tables 4,
    5), and the folds of MLRC with a small budget (Tables 6, 7)."""
    specs = with_histories(expand_seeds(search_each(specs_of(params), METHODS, params), params))
    if params.protocol != "conventional":
        return specs
    # a recipe with rates is of a whole network, on which only what the claims name is trained
    if params.profile != "paper" and "PFML" in params.methods and not params.rates:
        farther = {"delta_rep": FARTHER}
        specs += runs_of([METHODS["PFML"]], params, setting=f"delta_rep={FARTHER:g}", loss_options=farther)
    if dim := params.small_dim:
        specs += expand_seeds(specs_of(params, SMALL_DIM_METHODS, embedding_size=dim, setting=f"dim={dim}"), params)
        small = params.model_copy(update={"embedding_size": dim})
        specs += [r for r in runs_of([METHODS["untrained"]], small, setting=f"dim={dim}") if r.method == START]
    if steps := params.mlrc_steps:
        short = {"steps": steps, "epochs": None, "eval_every": max(steps // 2, 1), "eval_every_epochs": None}
        specs += expand_seeds(specs_of(params, MLRC_METHODS, **short), params, "mlrc")
    return specs


def specs_of(params: Any, among: Iterable[str] | None = None, **how: Any) -> list[RunSpec]:
    """The parameters' methods, or those of `among` that they have."""
    names = params.methods if among is None else [name for name in among if name in params.methods]
    return [spec_of(method, params, **how) for method in pick(METHODS, names)]


Retrieval = pfml_study(
    "10_pfml_retrieval",
    parameters(
        FieldOptions,
        methods=tuple[str, ...],
        protocol=str,
        search_trials=Whole,
        small_dim=Whole,  # dimension of the small embeddings of Tables 4 and 5; 0: no such runs
        mlrc_steps=Whole,  # steps of each fold of Tables 6 and 7; 0: no folds
    ),
    retrieval,
    lambda finished, params: histories_apart(results.tidy(finished, params)),
    profiles={
        "quick": {"small_dim": 0, "mlrc_steps": 0, "seeds": 2, "methods": TABLE_1[:5]},
        "small": {"small_dim": 64, "mlrc_steps": 150, "methods": TABLE_1},
        "paper": {"small_dim": 64, "mlrc_steps": 0, "methods": TABLE_1},
    },
)
