"""Notebooks 41 and 47: retrieval with and without CCP, under the paper's own protocol (Tables II, V, VI, Fig. 8) and
under the conventional one (Tables III, IV)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence import results, tables
from dmlrepro.evidence.stored import Numbers, agrees, where_learned
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.ccp.ablations import alternating_table, gains
from dmlrepro.papers.ccp.methods import FOUR_FOLDS, LOSSES, METHODS, CcpParams, ccp_spec
from dmlrepro.papers.methods import every_seed, found_by_search, search_each
from dmlrepro.papers.studies import study_rows
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

PAIRS = tuple(f"{loss}{form}" for loss in LOSSES for form in ("", "-CCP-L"))
OTHERS = ("C1-XBM-L", "C2-XBM-L", "ProxyAnchor", "ProxyNCA++", "SoftTriple")
SMALL_MEMORY = ("C1-XBM-S", "C1-CCP-S", "C2-XBM-S", "C2-CCP-S")
SPREAD_METRICS = ("P@1", "MAP@R")


@dataclass(frozen=True)
class CcpRetrievalParams(CcpParams):
    """The parameters of notebook 41."""

    notebook = "41_ccp_retrieval"
    overrides: ClassVar = {
        "quick": CcpParams.overrides["quick"] | {"methods": ("untrained", *PAIRS, *OTHERS, *SMALL_MEMORY)},
        "small": CcpParams.overrides["small"] | {"methods": ("untrained", *PAIRS, *OTHERS, *SMALL_MEMORY)},
        "paper": CcpParams.overrides["paper"]
        | {"methods": ("untrained", *PAIRS, *OTHERS, *SMALL_MEMORY), "protocol": FOUR_FOLDS},
    }

    methods: tuple[str, ...] | None = None
    search_trials: int | None = None  # how many a search for each method's hyperparameters has; 0: no search


@dataclass(frozen=True)
class CcpConventionalParams(CcpParams):
    """The parameters of notebook 47; evaluations on the test set end a projection, as in the paper."""

    notebook = "47_ccp_conventional"
    overrides: ClassVar = {
        profile: values | {"protocol": "conventional"} for profile, values in CcpParams.overrides.items()
    }

    methods: tuple[str, ...] = ("untrained", "C2-CCP-L", "MS-CCP-L", "ProxyAnchor", "MS")


def retrieval(params: CcpRetrievalParams) -> list[RunSpec]:
    """Every method, every seed, its hyperparameters searched first where there are trials."""
    return every_seed([spec for spec, _ in search_each(_specs(params), METHODS, params)], params)


def conventional(params: CcpConventionalParams) -> list[RunSpec]:
    """Tables III and IV: CCP beside the best of the others."""
    return every_seed(_specs(params), params)


def retrieval_table(finished: Iterable, params: CcpRetrievalParams) -> "pd.DataFrame":
    """The rows of the runs and the `steps` they took, and below them how far the metrics tell the methods apart."""
    import pandas as pd

    finished = list(finished)
    table = alternating_table(finished, params)
    return pd.concat([table, relative_spread(results.tidy(finished, params), params)], ignore_index=True)


def relative_spread(table: "pd.DataFrame", params: CcpRetrievalParams) -> "pd.DataFrame":
    """The deviation of a metric over the trained methods of a seed, in percent of their mean: rows of "methods"."""
    rows = tables.final_rows(table)
    rows = rows[rows["metric"].isin(SPREAD_METRICS) & (rows["method"] != "untrained")]
    if len(rows["method"].unique()) < 2:
        return study_rows(params, [])
    values = rows.groupby(["metric", "seed"], sort=False)["value"]
    spread = (100 * values.std() / values.mean()).reset_index()
    return study_rows(
        params,
        (
            {"method": "methods", "setting": f"of={row.metric}", "metric": "relative_spread", "seed": row.seed}
            | {"value": row.value}
            for row in spread.itertuples()
        ),
    )


def tuned(params: CcpRetrievalParams) -> "pd.DataFrame | None":
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_specs(params), METHODS, params)


def _specs(params: CcpRetrievalParams | CcpConventionalParams) -> list[RunSpec]:
    return [ccp_spec(name, params) for name in params.methods]


LEARNED = 5.0  # points of MAP@R, the premise of the claims

# --- what was found ---------------------------------------------------------------------------------------------------


def _hardly_learned(numbers: Numbers) -> str:
    start = numbers.mean("untrained", "MAP@R")
    ours = numbers.ranked([name for name in numbers.methods if "-CCP-" in name], "MAP@R")
    slow = [name for name in ours if numbers.mean(name, "MAP@R") < start + LEARNED]
    if not slow:
        return ""
    said = ", ".join(f"{name} ({numbers.mean(name, 'MAP@R'):.1f})" for name in slow)
    return (
        f"Within {LEARNED:g} points of the untrained network's {start:.1f} MAP@R are {said}: of these the comparisons "
        "say how long they take to learn, not how good they become."
    )


def _ccp_gains(numbers: Numbers) -> str:
    every, said = gains(numbers, "{}-CCP-L", "{}")
    return f"CCP beats the loss that it is over with {said}, {agrees(every)}, where it beats every one."


def _rivals(numbers: Numbers) -> str:
    trained = [name for name in numbers.methods if name not in ("untrained", "methods")]
    first, *_ = numbers.ranked(trained, "MAP@R")
    best = numbers.ranked([name for name in trained if "-CCP-" in name], "MAP@R")[0]
    rival = numbers.ranked([name for name in trained if "-CCP-" not in name], "MAP@R")[0]
    return (
        f"{first} comes first of {len(trained)}, {agrees(first == best)}, whose Table II has a loss with CCP "
        f"first on every benchmark: {best} has {numbers.against(best, rival, 'MAP@R')} of {rival}."
    )


def _memory(numbers: Numbers) -> str:
    better = numbers.mean("C2-CCP-L", "MAP@R") > numbers.mean("C2-XBM-L", "MAP@R")
    if ("C2-XBM-S", "MAP@R") in numbers.cells and not numbers.effects("C2-XBM-L", "C2-XBM-S", "MAP@R").any():
        return "XBM is at its best before its memory begins, whatever the size: CCP cannot be compared with a memory."
    return (
        f"Beside a memory as large as its proxies CCP is {'ahead' if better else 'not ahead'}, {agrees(better)}: "
        f"{numbers.against('C2-CCP-L', 'C2-XBM-L', 'MAP@R')} of XBM."
    )


def _spreads(numbers: Numbers) -> str:
    wide, narrow = (numbers.mean(f"methods;of={metric}", "relative_spread") for metric in ("MAP@R", "P@1"))
    better = wide > narrow
    return (
        f"MAP@R tells the methods {'better' if better else 'no better'} apart than P@1, {agrees(better)}: "
        f"their deviation is {wide:.0f} % of their mean against {narrow:.0f} %."
    )


def _state_of_the_art(numbers: Numbers) -> str:
    ours = numbers.ranked(["C2-CCP-L", "MS-CCP-L"])[0]
    rival = numbers.ranked(["ProxyAnchor", "MS"])[0]
    better = numbers.mean(ours) > numbers.mean(rival)
    return (
        f"The better CCP, {ours}, {'leads' if better else 'does not lead'}, {agrees(better)}, whose Table III has it "
        f"ahead on all but Cars: {numbers.against(ours, rival)} of {rival}."
    )


def _conventional_gains(numbers: Numbers) -> str:
    better = numbers.mean("MS-CCP-L") > numbers.mean("MS")
    return (
        f"Over MS, trained by the same steps, CCP {'gains' if better else 'does not gain'}, {agrees(better)}: "
        f"{numbers.against('MS-CCP-L', 'MS')}."
    )


NOTEBOOKS = [
    Notebook(
        CcpRetrievalParams,
        retrieval,
        retrieval_table,
        findings=where_learned(_hardly_learned, _ccp_gains, _rivals, _memory, _spreads),
    ),
    Notebook(CcpConventionalParams, conventional, findings=where_learned(_state_of_the_art, _conventional_gains)),
]
