"""What results/ says of the main methods of the five papers side by side: accuracy, wins, speed, wrong labels, cost.

Nothing is trained here; notebook 91 shows it beside its own runs. Only rows of one data set, network, dimension and
part that is trained stand in one table, and only those of one protocol, of equally many images and equally many trials
of a search are counted against each other.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from experiments import papers
from experiments.across import performance
from experiments.across.one_protocol import MAIN
from experiments.analysis import claims, comparing, saving, stored, tables
from experiments.analysis.statistics import LEVEL, MIN_SEEDS, holm, p_above, t_interval
from experiments.figures import charts, comparisons

READ = (  # notebooks with main comparisons
    *("91_five_methods_one_protocol", "10_pfml_retrieval", "20_nivmf_retrieval", "32_meanfield_conventional"),
    *("47_ccp_conventional", "41_ccp_retrieval", "50_plm_retrieval"),
)
WITHOUT_LABELS = ("PLM",)
METRICS = ("R@1", "MAP@R")
PLACE = ["profile", "dataset", "backbone", "dim", "part"]  # what rows of one table share
CONDITIONS = ["protocol", "images", "trials"]  # what must be equal where rows are counted against each other
NEAR = 0.95  # of the gain, by which a method has nearly arrived


# --- accuracy ---------------------------------------------------------------------------------------------------------


def evidence() -> pd.DataFrame:
    """A row per run of a main method in results/: columns of PLACE, method, protocol, images (that it has seen), trials
    (of the search that chose its settings), notebook, seed, and a column per metric of METRICS. Where several tables
    have a method under the same CONDITIONS at one PLACE, it is the one least changed against its profile.
    """
    parts = [rows for name in READ for source in stored.stored(name) if len(rows := _runs(source))]
    if not parts:
        return pd.DataFrame(columns=[*PLACE, "method", "protocol", "images", "trials", "notebook", "seed", *METRICS])
    table = pd.concat(parts, ignore_index=True)
    ranked = table.sort_values("changes", kind="stable")
    first = ranked.groupby([*PLACE, *CONDITIONS, "method"], sort=False)["stem"].transform("first")
    return ranked[ranked["stem"] == first].sort_index().drop(columns=["changes", "stem"])


def _runs(source: stored.Stored) -> pd.DataFrame:
    """The runs of one table whose method has no setting."""
    rows = tables.final_rows(source.table)
    shown = rows["method"].isin([*MAIN, claims.START]) & (rows["setting"] == "") & rows["metric"].isin(METRICS)
    rows = rows[shown & ~rows["protocol"].str.contains("mlrc", case=False)]
    if source.older or rows.empty:
        return rows.head(0)
    last = source.table[(source.table["selection"] == "last") & (source.table["setting"] == "")]
    steps = last.groupby("method")["step"].max()
    wide = rows.pivot_table(
        "value", ["dataset", "backbone", "dim", "protocol", "method", "seed"], "metric"
    ).reset_index()
    changes = [name for name in source.stem.partition("--")[2].split(",") if name and not name.startswith("dataset=")]
    made = source.parameters
    wide = wide.assign(
        profile=source.profile,
        # an older version's table says otherwise what of the network is trained
        part=made.get("train_from", made.get("trained", "")) or "whole network",
        images=[int(steps.get(method, 0)) * int(made["batch_size"]) for method in wide["method"]],
        trials=[source.trials.get(method, 0) for method in wide["method"]],
        notebook=source.notebook,
        stem=source.stem,
        changes=len(changes),
    )
    # features have a dimension of their own, the network that training begins with the one of the others
    dim = wide.loc[~wide["method"].isin(["untrained"]), "dim"]
    return wide.assign(dim=wide["dim"].where(wide["method"] != "untrained", dim.mode().iat[0] if len(dim) else 0))


def places(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The runs of every PLACE that has two trained methods, those of most methods first, with its heading."""
    groups = [some for _, some in rows.groupby(PLACE, sort=False) if len(_trained(some)) > 1]
    order = {profile: place for place, profile in enumerate(saving.PROFILES)}
    for some in sorted(groups, key=lambda group: (order[group["profile"].iat[0]], -len(_trained(group)))):
        first = some.iloc[0]
        network = stored.NETWORKS.get(first["backbone"].partition(".")[0], first["backbone"])
        part = {"head": "head alone", "whole network": "whole network"}.get(first["part"], f"from {first['part']} on")
        where = f"{stored.data_in_words(first['dataset'])}, {network}, {first['dim']} dimensions, {part}"
        yield f"{where} ({first['profile']})", some


def _trained(some: pd.DataFrame) -> list[str]:
    return [name for name in dict.fromkeys(some["method"]) if name not in comparing.UNTRAINED]


def accuracy(rows: pd.DataFrame) -> Markdown:
    """A table per PLACE: mean and 95 % interval (from MIN_SEEDS seeds on), the gain over the network that training
    begins with, and on what each row rests; and which main methods have no run there."""
    lines = []
    for heading, some in places(rows):
        lines += [
            f"**{heading}**",
            "",
            "| method | R@1 | MAP@R | over the start, MAP@R | seeds | images seen | protocol | tuned | notebook |",
        ]
        lines.append("|---|---|---|---|---|---|---|---|---|")
        starts = some[some["method"] == claims.START].drop_duplicates("seed").set_index("seed")["MAP@R"]
        for own in _by_conditions(some):
            method, trials, notebook = (own[name].iat[0] for name in ("method", "trials", "notebook"))
            gain = own.set_index("seed")["MAP@R"] - starts.reindex(own["seed"])  # NaN if a seed has no start on record
            name = f"{method} (without labels)" if method in WITHOUT_LABELS else method
            trained = method not in comparing.UNTRAINED
            cells = [name, *(_mean(own[metric]) for metric in METRICS)]
            cells += [_mean(gain) if gain.notna().all() and method != claims.START else "", len(own)]
            cells += [f"{own['images'].iat[0]:,}", own["protocol"].iat[0]] if trained else ["", ""]
            cells += [
                (f"{trials} trials" if trials else "no") if trained else "",
                f"[{notebook[:2]}]({notebook}.ipynb)",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        missing = [name for name in MAIN if name not in set(some["method"])]
        lines += ["", f"Not run here: {', '.join(missing)}." if missing else "All main methods are run here.", ""]
    return Markdown("\n".join(lines) or "results/ has no two main methods on one data set so far.")


def _by_conditions(some: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The runs of each method under each of the CONDITIONS, those of the most methods first, there the highest mean;
    at the end networks that nobody trained, once each."""
    trained = some[~some["method"].isin(comparing.UNTRAINED)]
    together = [rows for _, rows in trained.groupby(CONDITIONS, sort=False)]
    for rows in sorted(together, key=lambda rows: -rows["method"].nunique()):
        ranked = rows.groupby("method", sort=False)["MAP@R"].mean().sort_values(ascending=False, kind="stable")
        yield from (rows[rows["method"] == method] for method in ranked.index)
    untrained = some[some["method"].isin(comparing.UNTRAINED)].drop_duplicates(["method", "seed"])
    yield from (rows for _, rows in untrained.groupby("method", sort=False))


def _mean(values: Iterable[float]) -> str:
    values = np.asarray(list(values), float)
    low, high = t_interval(values)
    return f"{values.mean():.1f}" + (f" ± {(high - low) / 2:.1f}" if len(values) >= MIN_SEEDS else "")


# --- who is above whom ------------------------------------------------------------------------------------------------


def compared(some: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of one PLACE that may be counted against each other, a table for each of the CONDITIONS under which
    three methods were run, that of the most methods first. Untrained networks, and methods that see no labels, are left
    out."""
    rows = some[~some["method"].isin([*comparing.UNTRAINED, *WITHOUT_LABELS])]
    alike = [group for _, group in rows.groupby(CONDITIONS, sort=False) if group["method"].nunique() > 2]
    return sorted(alike, key=lambda group: -group["method"].nunique())


def wins(rows: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """(share, sure, seeds) of the methods, those with the largest mean share first.

    share: in what part of the seeds that two methods have in common the one of the row lies above that of the column; a
        tie is half. sure: whether their paired difference is not chance, by a t test from MIN_SEEDS seeds on and Holm's
        adjustment over all pairs. seeds: the least number of common ones.
    """
    by_seed = rows.pivot_table(metric, "seed", "method")
    names = list(by_seed)
    share = pd.DataFrame(np.nan, names, names)
    pairs, p_values, common = [], [], []
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            effects = (by_seed[one] - by_seed[other]).dropna().to_numpy()
            if len(effects):
                share.loc[one, other] = ((effects > 0) + (effects == 0) / 2).mean()
                share.loc[other, one] = 1 - share.loc[one, other]
                enough = len(effects) >= MIN_SEEDS
                pairs.append((one, other))
                common.append(len(effects))
                p_values.append(
                    min(2 * float(min(p_above(effects, 0), p_above(-effects, 0))), 1.0) if enough else np.nan
                )
    sure = pd.DataFrame(False, names, names)
    for (one, other), p in zip(pairs, holm(p_values, len(pairs))):
        sure.loc[one, other] = sure.loc[other, one] = bool(p < LEVEL)
    order = share.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return share.loc[order, order], sure.loc[order, order], min(common, default=0)


def win_figures(rows: pd.DataFrame, metric: str = "MAP@R") -> Iterator[Figure]:
    """A matrix for each of the CONDITIONS at each PLACE under which three methods can be counted against each other."""
    for heading, some in places(rows):
        for alike in compared(some):
            share, sure, seeds = wins(alike, metric)
            few = "" if seeds >= MIN_SEEDS else ", a direction only"
            where, _, rest = heading.partition(", ")
            images = f"{alike['images'].iat[0]:,} images, {alike['protocol'].iat[0]}"
            yield comparisons.wins(share, sure, f"{metric}: {where}\n{rest},\n{images}, {seeds} seeds{few}")


def show_wins(rows: pd.DataFrame, metric: str = "MAP@R") -> None:
    """Show `win_figures`, or say that there is none."""
    import matplotlib.pyplot as plt

    figures = list(win_figures(rows, metric))
    for figure in figures:
        display(figure)
        plt.close(figure)
    if not figures:
        display(Markdown("No three methods are run alike on one data set so far."))


# --- how soon ---------------------------------------------------------------------------------------------------------


def arrival() -> pd.DataFrame:
    """When R@1 of the first seed has NEAR of its gain over the network that training began with: a row per data set and
    method whose evaluations are on record, with the share of the training that had passed, the step, and the seconds
    over ProxyAnchor's of the same table."""
    arrivals = []
    for name in READ:
        for source in stored.stored(name):
            if not source.older:
                arrivals += _arrivals(source)
    columns = ["dataset", "profile", "method", "of", "step", "share of training", "time / ProxyAnchor's", "notebook"]
    table = pd.DataFrame(arrivals, columns=columns).drop_duplicates(["dataset", "profile", "method"])
    return table.sort_values(["profile", "dataset", "step"], kind="stable").reset_index(drop=True).round(2)


def _arrivals(source: stored.Stored) -> list[dict[str, Any]]:
    rows = source.table[(source.table["metric"] == "R@1") & (source.table["seed"] == 0)]
    rows = rows[(rows["protocol"] == "conventional") & rows["method"].isin(MAIN)]
    start = source.table[
        (source.table["method"] == claims.START) & (source.table["metric"] == "R@1") & (source.table["seed"] == 0)
    ]
    start = start[(start["protocol"] == "conventional") & (start["setting"] == "")]
    histories = rows[(rows["selection"] == "every") & rows["setting"].isin(["", tables.CURVE])]
    if start.empty or histories.empty:
        return []
    begun, speeds = start["value"].iat[0], _steps_per_second(source)
    arrivals = []
    for method, curve in histories.groupby("method", sort=False):
        curve = curve.drop_duplicates("step").sort_values("step")
        steps, values = np.array([0, *curve["step"]]), np.array([begun, *curve["value"]])
        wanted = begun + NEAR * (values[-1] - begun)
        reached = int(np.argmax(values >= wanted)) if values[-1] > begun else 0
        if reached == 0:  # it gained nothing
            continue
        before, after = values[reached - 1], values[reached]
        step = steps[reached - 1] + (wanted - before) / (after - before) * (steps[reached] - steps[reached - 1])
        row = {"dataset": curve["dataset"].iat[0], "profile": source.profile, "method": method, "of": steps[-1]}
        row |= {"step": step, "share of training": step / steps[-1], "notebook": source.notebook}
        arrivals.append(row | {"seconds": step / speeds.get(method, np.nan)})
    reference = next((row["seconds"] for row in arrivals if row["method"] == "ProxyAnchor"), np.nan)
    for row in arrivals:
        row["time / ProxyAnchor's"] = row.pop("seconds") / reference
    return arrivals


def _steps_per_second(source: stored.Stored) -> dict[str, float]:
    """By method, of the run that was disturbed least: other runs share the machine."""
    if source.costs is None or "steps_per_second" not in source.costs:
        return {}
    costs = source.costs[source.costs["setting"].fillna("").isin(["", tables.CURVE])]
    return pd.to_numeric(costs["steps_per_second"], errors="coerce").groupby(costs["method"]).max().dropna().to_dict()


def absent_from(table: pd.DataFrame) -> Markdown:
    """Which main methods a table with a column `method` lacks, in a sentence."""
    missing = [name for name in MAIN if name not in {*table["method"], *comparing.UNTRAINED}]
    return Markdown(f"No such numbers in results/: {', '.join(missing) or 'none is missing'}.")


# --- wrong labels -----------------------------------------------------------------------------------------------------


def label_noise() -> Figure | Markdown:
    """R@1 against the share of wrong training labels, from the table of notebook 11 that carries most."""
    sources = [source for source in stored.stored("11_pfml_label_noise") if not source.older]
    if not sources:
        return Markdown("results/ has no runs with wrong labels so far.")
    rows = sources[0].table
    trained = rows[~rows["method"].isin(comparing.UNTRAINED) & rows["setting"].str.startswith("label_noise=")]
    return charts.ablation(trained, "label_noise", "R@1", reference=0.0, names=papers.names())


# --- cost -------------------------------------------------------------------------------------------------------------

COSTS = {  # at the size of SOP, 11,318 classes and 512 dimensions: (benchmark, case, form, what it is)
    "PFML": ("pfml", "sop", "product", "2 proxies per class, 180 images"),
    "EL-nivMF": ("nivmf", "sop", "product", "112 images, 5 samples"),
    "MFCont": ("mean_field", "sop", "MFCont", "128 images"),
    "MFCWMS": ("mean_field", "sop", "MFCWMS", "128 images"),
    "NormSoftmax": ("mean_field", "sop", "NormalizedSoftmax", "128 images"),
    "C2-CCP-L": ("k_center", "search", "product", "the k-center search that begins a problem, 128 dimensions"),
    "PLM": ("plm", "k=9", "product", "200 points, whatever the number of classes"),
    "ResNet-50 itself": ("pfml", "cub", "resnet50", "forward and backward pass of 100 images"),
}


def costs() -> pd.DataFrame:
    """Seconds and megabytes of a step of each loss as results/benchmarks has them, each on the batch of its paper."""
    rows = []
    for method, (name, case, form, what) in COSTS.items():
        table = performance.table_of(name)
        table = table[(table["case"] == case) & (table["form"] == form)]
        values = table.groupby("metric")["value"].first()
        units = {"seconds": "time (s)", "megabytes": "peak memory (MB)"}
        row = {"method": method} | {units[metric]: values.get(metric, np.nan) for metric in units}
        rows.append(row | {"measured on": what if len(table) else "not run", "table": f"{name}.csv"})
    return pd.DataFrame(rows).set_index("method").astype(object).fillna("not measured")
