"""Tidy results: one CSV per notebook and profile, its provenance beside it, the published tables, and the golden check.

A row is one number of one run; its columns are those of tables.py. Recalls and precisions are in percent here. A CSV
holds only what is deterministic on one machine; seconds and bytes go to `<notebook>.cost.csv`. Files are replaced
atomically and only after every row is valid, and read only as they were saved, see provenance.py.

At which step a run was stopped, or was best on validation classes, is an outcome like its numbers: the column `step`
tells rows apart only among those of selection `every`.
"""

import functools
import json
import math
import os
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dmlrepro.evidence.comparing import UNTRAINED
from dmlrepro.evidence.provenance import PARTS, damage, record, seal, table_paths
from dmlrepro.evidence.statistics import MIN_SEEDS, t_interval
from dmlrepro.evidence.tables import COLUMNS, HITS, IDENTITY, chosen
from dmlrepro.files import replacing, repository_root

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROFILES = ("paper", "small", "quick")  # those that carry more come first
SELECTIONS = ("last", "val_best", "test_best", "every")
TRAINED_BY = "trained_by"  # an entry of a table's record, see `provenance`
GOLDEN_METRICS = ("R@1", "MAP@R", "W2", "W2/delta")  # what a golden file keeps; all of a table that has none of them
GOLDEN_IDENTITY = ["protocol", "method", "setting", "metric"]


# --- from runs to tables ----------------------------------------------------------------------------------------------


def tidy(runs: Iterable, params) -> pd.DataFrame:
    """The metric rows of finished runs, labelled by each spec's method, setting and protocol.

    The models that a protocol trains on folds enter together, see `protocols.combine`.
    """
    from dmlrepro.training import protocols

    rows = []
    for run in protocols.combine(runs):
        labels = {"paper": params.paper} | _labels(run, params)
        for row in run.rows:
            value = 100 * row["value"] if in_percent(row["metric"]) else row["value"]
            rows.append(labels | row | {"setting": _setting(labels["setting"], row), "value": value})
    return frame(rows)


def _setting(setting: str, row: dict) -> str:
    """A run's setting; the rows of a further network that its scheme evaluates name that network."""
    return f"{setting};network={row['network']}".lstrip(";") if "network" in row else setting


def _labels(run, params) -> dict:
    """What a table says of a run beside its numbers: its context, method, setting and seed."""
    return {
        "experiment": params.notebook,
        "profile": params.profile,
        "dataset": run.dataset,
        "backbone": run.spec.backbone,
        "dim": run.spec.embedding_size or 0,
        "protocol": run.spec.protocol,
        "method": run.spec.method,
        "setting": run.spec.setting,
        "seed": run.spec.seed,
    }


def hits(runs: Iterable, params) -> pd.DataFrame:
    """R@1 of finished runs as counts by test class, for `claims.judge`; columns as in `tables.HITS`.

    `queries` are the query images of a class that have a relevant gallery image, `hits` those whose nearest gallery
    image is of their class. The labels are those of `tidy`. The models of a method's folds enter as `protocols.combine`
    scores them: under "separated" the counts of all models are added, under "concatenated" they are those of the
    models' unit embeddings side by side. A fold that was validated and did not restore its best weights is left out:
    it kept the embeddings of its last step, and tables show another.
    """
    from dmlrepro.training import protocols, records

    models: dict[str, list] = {}  # those that differ in the fold only
    for run in runs:
        if run.spec.fold is None or run.spec.restore_best:
            spec = run.spec.replace(fold=None)
            labels = [spec.method, spec.setting, spec.protocol]
            models.setdefault(json.dumps([spec.as_dict(), labels], sort_keys=True), []).append(run)
    rows = []
    for group in models.values():
        for entry in protocols.combine(group):
            together = len(group) > 1 and entry.spec.protocol.endswith("concatenated")
            # a search through all images per run, most of what a notebook takes whose runs are finished
            for class_id, found, queries in records.derived(group, _counts, together=together):
                rows.append(_labels(entry, params) | {"class_id": class_id, "hits": found, "queries": queries})
    return pd.DataFrame(rows, columns=HITS)


def _counts(*models, together: bool) -> list[list[int]]:
    """Rows of class, hits and queries of models of one spec: added up, or those of their unit embeddings together."""
    import torch
    from torch.nn.functional import normalize

    from dmlrepro import retrieval
    from dmlrepro.training import batches, distributed

    manifest = batches.load_dataset(models[0].spec)
    test = manifest.indices("test")
    labels, query, gallery = manifest.labels[test], manifest.is_query[test], manifest.is_gallery[test]
    device = distributed.device_for_training()
    embeddings = [model.embeddings.to(device) for model in models]
    if together:
        embeddings = [torch.cat([normalize(each, dim=1) for each in embeddings], dim=1)]
    searched = labels[gallery]
    own_gallery = bool((query & gallery).all())  # the images search each other, each left out of its own list
    relevant = np.bincount(searched, minlength=labels.max() + 1)[labels[query]] > int(own_gallery)
    counts = np.zeros((labels.max() + 1, 2), int)
    for each in embeddings:
        others = None if own_gallery else each[torch.from_numpy(gallery)]
        nearest = retrieval.nearest(each[torch.from_numpy(query)], 1, others).cpu().numpy()[:, 0]
        hit = (searched[nearest] == labels[query]) & relevant
        for column, counted in enumerate((hit, relevant)):
            counts[:, column] += np.bincount(labels[query][counted], minlength=len(counts))
    classes = np.flatnonzero(counts[:, 1])
    return np.column_stack([classes, counts[classes]]).tolist()


def frame(rows: Iterable[dict]) -> pd.DataFrame:
    """A validated tidy table from rows; missing text columns are empty, selection is `last`, seed and step 0."""
    defaults = {"backbone": "", "dim": 0, "protocol": "", "setting": "", "seed": 0, "selection": "last", "step": 0}
    table = pd.DataFrame([defaults | row for row in rows], columns=COLUMNS)
    validate(table)
    return table


def in_percent(metric: str) -> bool:
    """Whether tables hold a metric in percent: "R@1", and "val R@1" of the validation classes."""
    return metric.removeprefix("val ").startswith(("R@", "P@1", "RP", "MAP@R", "mAP@", "NMI"))


def validate(table: pd.DataFrame) -> None:
    """Raise ValueError naming the first row that is not a result."""
    if list(table.columns) != COLUMNS:
        raise ValueError(f"columns must be {', '.join(COLUMNS)}; got {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError("the table has no rows")
    text = table["selection"].isin(SELECTIONS)
    if not text.all():
        raise ValueError(f"selection must be one of {SELECTIONS}: {_first(table, ~text)}")
    for column in ("paper", "experiment", "profile", "dataset", "method", "metric"):
        empty = table[column].astype(str).str.len() == 0
        if empty.any():
            raise ValueError(f"{column} is empty: {_first(table, empty)}")
    finite = pd.to_numeric(table["value"], errors="coerce").map(math.isfinite)
    if not finite.all():
        raise ValueError(f"value must be a finite number: {_first(table, ~finite)}")
    outside = table["metric"].map(in_percent) & ~table["value"].between(0, 100)
    if outside.any():
        raise ValueError(f"percentages must lie in [0, 100]: {_first(table, outside)}")
    twice = _without_outcomes(table).duplicated(IDENTITY)
    if twice.any():
        raise ValueError(f"the same measurement twice: {_first(table, twice)}")


def _first(table: pd.DataFrame, mask) -> dict:
    return table[mask].iloc[0].to_dict()


def _without_outcomes(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with the step only where it is part of their identity."""
    return table.assign(step=table["step"].where(table["selection"] == "every", 0))


# --- files ------------------------------------------------------------------------------------------------------------


def output_folder(profile: str) -> Path:
    """Where a profile's tables go: DMLREPRO_RESULTS (the workflow's build folder) or results/."""
    root = repository_root()
    return (root / os.environ.get("DMLREPRO_RESULTS", "results")) / profile


def save(table: pd.DataFrame, params, *, runs: Sequence = (), cost: pd.DataFrame | None = None) -> Path:
    """Write `<stem>.csv`, with costs `<stem>.cost.csv`, and the record of both, `<stem>.json`; returns the CSV's path.

    The table is sorted by its identity columns, so equal numbers are equal bytes. When neither they nor the parameters
    did change, the provenance of the run that first made them stays.

    Args:
        runs: the finished runs of the table, for its provenance and, without `cost`, its costs.
    """
    validate(table)
    if cost is None and runs:
        cost = costs(runs)
    path = output_folder(params.profile) / f"{params.stem}.csv"
    text = to_csv(table)
    made = {} if damage(path) else record(path)
    same_parameters = made.get("parameters") == json.loads(json.dumps(params.as_dict()))
    if not (same_parameters and path.read_text(encoding="utf8") == text):
        made = provenance(params, runs)
        write_text(path, text)
        for part in PARTS[1:]:  # costs and a picture of other numbers
            path.with_suffix(part).unlink(missing_ok=True)
    made = {name: value for name, value in made.items() if name != TRAINED_BY} | _recorded(runs)
    if cost is not None:
        write_text(path.with_suffix(".cost.csv"), cost.to_csv(index=False, float_format="%.7g", lineterminator="\n"))
    seal(path, made)
    return path


def save_picture(figure: "Figure", params) -> None:
    """Write `<stem>.png` beside the table that `save` has written, for the committed page, which is an execution of
    profile quick and shows the pictures of others; its own it shows already, so that quick writes none.

    Raises:
        ValueError: no table was saved there.
    """
    if params.profile != "quick":
        path = output_folder(params.profile) / f"{params.stem}.csv"
        made = record(path)
        with replacing(path.with_suffix(".png")) as temporary:
            figure.savefig(temporary, format="png", bbox_inches="tight")
        seal(path, made)


def to_csv(table: pd.DataFrame) -> str:
    ordered = table.sort_values(IDENTITY, kind="stable")
    return ordered.to_csv(index=False, float_format="%.6f", lineterminator="\n")


def as_saved(table: pd.DataFrame) -> pd.DataFrame:
    """A table in the order and with the digits that `save` gives it, so that what is said of both is the same."""
    return table.sort_values(IDENTITY, kind="stable").round({"value": 6}).reset_index(drop=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf8")


def read(path: Path | str) -> pd.DataFrame:
    """A results CSV, validated.

    Raises:
        ValueError: a row is no result, or a file of the table is not as it was saved.
    """
    record(Path(path))
    text_columns = {name: str for name in COLUMNS if name not in ("dim", "seed", "step", "value")}
    table = pd.read_csv(path, dtype=text_columns, keep_default_na=False)
    validate(table)
    return table


def load_all(folder: Path | str | None = None) -> pd.DataFrame:
    """Every table of results/, or of another folder of profiles, in one frame, the profiles that carry more
    first.

    The columns are those of `read`, and `changes`: what the run of the notebook changed against its profile, as in
    "seeds=5,steps=600"; empty for the profile as it is. With it no two rows have the same identity. Many changes end in
    a digest, as the file's name does; the .json beside the file has them all.

    Raises:
        FileNotFoundError: the folder has no tables.
        ValueError: a table is not valid; names the file.
    """
    root = repository_root() / "results" if folder is None else Path(folder)
    paths = [path for profile in PROFILES for path in table_paths(root / profile)]
    if not paths:
        raise FileNotFoundError(
            f"no tables in {root}/<profile>; run a notebook first, or give the folder that has them"
        )
    tables = [_read_named(path).assign(changes=path.stem.partition("--")[2]) for path in paths]
    return pd.concat(tables, ignore_index=True)[[*IDENTITY, "changes", "value"]]


def publish(build: Path, target: Path, *, everything: bool = False) -> tuple[int, int]:
    """Move the tables of a build folder to `target`; returns how many there are, and how many are new or changed.

    Every table is validated before the first one is moved. One that repeats what is there leaves it as it is, with the
    provenance of the run that first made it, see `repeats`; `everything` moves it all the same, so that tables, costs
    and executed notebooks are of one execution. One of which a file is missing there, or is not as it was saved, is
    replaced.

    Raises:
        FileNotFoundError: the folder has no tables.
        ValueError: a table is not valid or was edited; names the file and the first bad row.
    """
    tables = {path: _read_named(path) for path in table_paths(build)}
    if not tables:
        raise FileNotFoundError(f"no tables in {build}; run the notebooks first")
    moved = 0
    for path, table in tables.items():
        new = target / path.name
        if not damage(new) and (
            _equal_files(new, path) if everything else repeats(new, table) and _made_the_same(new, path)
        ):
            continue
        for part in (*PARTS, ".json"):  # the record goes last: without it nothing counts as saved
            if path.with_suffix(part).exists():
                with replacing(new.with_suffix(part)) as temporary:
                    temporary.write_bytes(path.with_suffix(part).read_bytes())
            else:
                new.with_suffix(part).unlink(missing_ok=True)
        moved += 1
    return len(tables), moved


def _equal_files(*tables: Path) -> bool:
    """Whether two sound tables are the same files: their records hold the sums of all others."""
    one, other = (path.with_suffix(".json").read_bytes() for path in tables)
    return one == other


def _made_the_same(*tables: Path) -> bool:
    """Whether the same code trained the recorded runs of two equal tables, and the costs beside them are of the same
    things; their numbers differ in every run."""
    one, other = (record(path).get(TRAINED_BY) for path in tables)
    if one != other:
        return False
    costs = [path.with_suffix(".cost.csv") for path in tables]
    if not all(path.exists() for path in costs):
        return not any(path.exists() for path in costs)
    one, other = (pd.read_csv(path, keep_default_na=False) for path in costs)
    identity = [name for name in ("metric", "backbone", "method", "setting", "seed") if name in one]
    return list(one) == list(other) and one[identity].equals(other[identity])


def _read_named(path: Path) -> pd.DataFrame:
    try:
        return read(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def repeats(committed: Path, table: pd.DataFrame) -> bool:
    """Whether a table says what a committed one says: the same rows with the same numbers, or with such as another
    processor may make of them, which is all golden values of both within their tolerance."""
    there = read(committed)
    if not _same_rows(joined := _side_by_side(there, table)):
        return False
    golden = _golden_of(committed, table)
    return _same_numbers(joined) or (
        golden is not None and all(compare_golden(each, golden).empty for each in (there, table))
    )


def difference(build: Path, target: Path) -> str:
    """One line on how the numbers of a build folder differ from those in `target`; empty when none does.

    The largest difference is of a metric in percent, in points.
    """
    count = differing = 0
    largest = 0.0
    for path in table_paths(build):
        if not (target / path.name).exists():
            continue
        joined = _side_by_side(read(target / path.name), read(path))
        apart = (joined["value_build"] - joined["value"]).abs()
        count += len(joined)
        differing += int((apart > 0).sum() + (joined["_merge"] != "both").sum())
        in_points = joined["metric"].map(in_percent)
        largest = max(largest, apart[in_points].max()) if in_points.any() else largest
    if not differing:
        return ""
    return f"{differing} of {count} numbers differ from the committed ones, the largest by {largest:.2f}"


def outdated(build: Path, target: Path) -> dict[str, str]:
    """The committed tables in `target` that are not what the present code makes of them in a build folder, and why.

    On a processor that rounds as the one did that made a committed table, any other number is a change of the code;
    elsewhere one beyond the tolerance of a golden value is. Tables that `target` does not have are left out.
    """
    found = {path: _why_outdated(target / path.name, path) for path in table_paths(build)}
    return {path.stem: why for path, why in found.items() if why}


def _why_outdated(committed: Path, built: Path) -> str:
    if committed not in table_paths(committed.parent):
        return ""
    if wrong := damage(committed):
        return wrong
    there, table = read(committed), read(built)
    golden = _golden_of(committed, table)
    beyond = [] if golden is None else [len(compare_golden(each, golden)) for each in (there, table)]
    if any(beyond):
        return f"{max(beyond)} golden values are beyond their tolerance"
    if not _same_rows(joined := _side_by_side(there, table)):
        return f"{int((joined['_merge'] != 'both').sum())} rows are in one of the two only"
    if _same_numbers(joined):
        return ""
    was, now = (record(path) for path in (committed, built))
    shared = was["parameters"].keys() & now["parameters"].keys()
    changed = sorted(name for name in shared if was["parameters"][name] != now["parameters"][name])
    if changed:
        return f"it was made with other parameters ({', '.join(changed)})"
    if was["rounding"] == now["rounding"]:
        apart = (joined["value_build"] - joined["value"]).abs()
        return f"{int((apart > 0).sum())} of {len(apart)} numbers differ, on a processor that rounds alike"
    return ""


def _golden_of(committed: Path, table: pd.DataFrame) -> pd.DataFrame | None:
    """The golden values of a table; None for one that has none, as that of another profile."""
    path = golden_folder() / committed.name
    return read_golden(path) if path.exists() and set(table["profile"]) == {"quick"} else None


def _side_by_side(committed: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    one, other = map(_without_outcomes, (committed, table))
    return one.merge(other, on=IDENTITY, how="outer", suffixes=("", "_build"), indicator=True)


def _same_rows(joined: pd.DataFrame) -> bool:
    return bool(joined["_merge"].eq("both").all())


def _same_numbers(joined: pd.DataFrame) -> bool:
    """Whether they agree but for the last digit that is written, which the number of threads may change."""
    return bool(np.isclose(joined["value_build"], joined["value"], rtol=1e-6, atol=1.5e-6).all())


def provenance(params, finished: Sequence = ()) -> dict:
    """What made a table: parameters, commit, package versions, device.

    `runs` lists the commits, devices and versions of its finished runs, with how many runs have them: they may come
    from the cache or from another machine. `device` and `rounding` are those of the runs, of this process without any.
    """
    from dmlrepro.training import distributed, keys, sources

    made = [json.dumps(run.made, sort_keys=True) for run in {run.key: run for run in finished}.values()]
    groups = [{"count": made.count(each)} | json.loads(each) for each in sorted(set(made))]
    return {
        "notebook": params.notebook,
        "parameters": params.as_dict(),
        **_searched(params, {run.spec.method for run in finished}),
        **sources.checkout(),
        "source": keys.source_hash(None, "supervised"),
        "versions": sources.versions(),
        "device": " + ".join(sorted({group["device"] for group in groups})) or keys.device_name(),
        "rounding": " + ".join(sorted({group["rounding"] for group in groups})) or keys.rounding(),
        "device_type": distributed.device_for_training().type,
        "machine": platform.machine(),
        "runs": groups,
        **_recorded(finished),
    }


def _searched(params, methods: Collection[str]) -> dict[str, dict]:
    """`searches`, where committed searches chose settings of these methods: by method the file, how many trials it has,
    and its sha256, by which the table is known to rest on that very search."""
    found = {
        method: {"file": params.search_name(each["method"]), "trials": len(each["trials"]), "sha256": each["sha256"]}
        for method, each in (params.searches().items() if methods else ())
        if method in methods
    }
    return {"searches": found} if found else {}


def _recorded(finished: Iterable) -> dict:
    """`trained_by`, of runs on record: [loss, scheme, what is trained, hash of the code] once each, by which `stored`
    finds what is stale; {} without any."""
    found = {
        (run.spec.loss or "", run.spec.scheme, run.spec.train_from or "", run.source) for run in finished if run.record
    }
    return {TRAINED_BY: [list(each) for each in sorted(found)]} if found else {}


def costs(runs: Iterable) -> pd.DataFrame:
    """Seconds of each run. They differ from machine to machine and are only ever compared as ratios."""
    return pd.DataFrame(
        [{"method": r.spec.method, "setting": r.spec.setting, "seed": r.spec.seed, **r.cost} for r in runs]
    )


# --- published numbers ------------------------------------------------------------------------------------------------


@functools.cache
def _published(paper: str) -> pd.DataFrame:
    path = repository_root() / "data" / "published" / f"{paper}.csv"
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.csv"))
        raise ValueError(f"no published numbers of {paper!r}; there are {', '.join(known)}")
    return pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "std_or_ci": [""], "dim": [""]})


def published(paper: str, table: str | Sequence[str] | None = None, **where) -> pd.DataFrame:
    """Published rows of a paper, e.g. published("pfml", "Table 1", dataset="CUB-200-2011", metric="R@1").

    A list stands for any of its members. ValueError when nothing matches, with what the column holds.
    """
    rows = _published(paper)
    if table is not None:
        where = {"table": table} | where
    for column, wanted in where.items():
        wanted = [wanted] if isinstance(wanted, str | int | float) else list(wanted)
        selected = rows[rows[column].isin(wanted)]
        if selected.empty:
            raise ValueError(
                f"{paper}: no published row with {column} in {wanted}; it holds {sorted(set(rows[column]))}"
            )
        rows = selected
    return rows.reset_index(drop=True)


def beside_published(ours: pd.DataFrame, theirs: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """One row per method: the published numbers of each data set beside our mean over seeds, for reading, not for
    comparing scales. Ours are at the chosen step (`tables.chosen`), of the first protocol in the table.

    Metrics that the table does not have are left out, as R@2 on SOP, whose ranks are 1, 10, 100 and 1000; ValueError
    when none is left. A cell is empty where nothing was measured or published; a column has the digits of `decimals`.
    """
    ours = chosen(ours[ours["protocol"] == ours["protocol"].iloc[0]])
    present = [metric for metric in metrics if metric in set(ours["metric"])]
    if not present:
        raise ValueError(f"metrics: the table has none of {', '.join(metrics)}; it has {sorted(set(ours['metric']))}")
    published_part = theirs[theirs["metric"].isin(metrics)].pivot_table(
        index="method", columns=["dataset", "metric"], values="value", aggfunc="first"
    )
    published_part.columns = [f"published {dataset} {metric}" for dataset, metric in published_part.columns]
    mean = ours.groupby(["method", "metric"])["value"].mean().unstack()[present]
    mean.columns = [f"ours {ours['dataset'].iloc[0]} {metric}" for metric in mean.columns]
    order = list(mean.index) + [method for method in published_part.index if method not in mean.index]
    beside = mean.join(published_part, how="outer").reindex(order)
    return readable(beside, {name: decimals(beside[name].dropna()) for name in beside})


def recalls(table: pd.DataFrame) -> list[str]:
    """The names R@K of a table, by rank: each benchmark has its own."""
    names = {name for name in table["metric"] if name.startswith("R@")}
    return sorted(names, key=lambda name: int(name.removeprefix("R@")))


def pivot(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The mean ± the half-width of Student's 95 % confidence interval over at least MIN_SEEDS seeds, of fewer the mean
    alone, a row per protocol, setting and method, at the chosen step (`tables.chosen`).
    """
    rows = chosen(table)
    shown = rows[rows["metric"].isin(metrics)]
    digits = {name: decimals(values) for name, values in shown.groupby("metric")["value"]}
    texts = shown.groupby(["protocol", "setting", "method", "metric"], sort=False)["value"].apply(
        lambda values: _with_interval(values, digits[values.name[-1]])  # the name is that of the group
    )
    wide = texts.unstack("metric", sort=False).reindex(columns=list(metrics))
    # rows of a protocol stay in the order in which they were trained, so that N = 2 precedes N = 10
    return wide.sort_index(level="protocol", sort_remaining=False, kind="stable").astype(object).fillna("")


def readable(table: pd.DataFrame, digits: int | Mapping[str, int]) -> pd.DataFrame:
    """A table to be shown: its numbers with so many decimals, and nothing where nothing was measured or printed."""
    return table.round(digits).astype(object).fillna("")


def decimals(values: Iterable[float]) -> int:
    """How many decimals a metric is written with: percentages have one, distances of unit vectors and ratios three."""
    return 1 if max((abs(value) for value in values), default=0) > 2 else 3


def _with_interval(values: pd.Series, digits: int) -> str:
    low, high = t_interval(values)
    return f"{values.mean():.{digits}f}" + (f" ± {(high - low) / 2:.{digits}f}" if len(values) >= MIN_SEEDS else "")


# --- golden numbers ---------------------------------------------------------------------------------------------------


def golden_folder() -> Path:
    return repository_root() / "tests" / "golden"


def golden_path(params) -> Path:
    return golden_folder() / f"{params.notebook}.csv"


def check_golden(table: pd.DataFrame, params) -> None:
    """Print whether the means over seeds match the golden run within its tolerances.

    The sentence is the regression test: it holds no raw number, so the same line on two machines means that both
    agree. A run with other parameters than the golden one says so and is not compared.
    """
    path = golden_path(params)
    if not path.exists():
        print(f"no golden run for {params.notebook} yet: make accept")
        return
    golden = read_golden(path)
    if params.stem != params.notebook or params.profile != "quick":
        print("parameters differ from the golden run (profile quick): not compared")
        return
    outside = compare_golden(table, golden)
    names = ", ".join(dict.fromkeys(golden["metric"]))
    if alike := seeds_that_agree(table):
        print(f"{names} within tolerance of the golden run: no, seeds of {alike} agree to the last digit")
        return
    if outside.empty:
        print(
            f"{names} of {golden.groupby(['method', 'setting']).ngroups} runs within tolerance of the golden run: yes"
        )
        return
    print(f"{names} within tolerance of the golden run: no")
    print(outside.to_string(index=False))


def read_golden(path: Path) -> pd.DataFrame:
    """A golden file: protocol, method, setting, metric, value (the mean over seeds) and tolerance."""
    return pd.read_csv(path, dtype=dict.fromkeys(GOLDEN_IDENTITY, str), keep_default_na=False)


def seeds_that_agree(table: pd.DataFrame) -> str:
    """The first method whose seeds all have the same retrieval scores, as if one seed were used for all; else "".

    The network before training is left out: the features of a pretrained one know no seed.
    """
    scores = table[(table["selection"] == "last") & (table["metric"] == "MAP@R") & ~table["method"].isin(UNTRAINED)]
    for (_, method, _), values in scores.groupby(["protocol", "method", "setting"])["value"]:
        if len(values) > 1 and values.nunique() == 1:
            return method
    return ""


def compare_golden(table: pd.DataFrame, golden: pd.DataFrame) -> pd.DataFrame:
    """Rows of the golden table that the new means miss, with the golden and the new value and the tolerance."""
    joined = beside_golden(table, golden)
    return joined[~(joined["moved"] <= joined["tolerance"])]  # a missing row compares false


def beside_golden(table: pd.DataFrame, golden: pd.DataFrame) -> pd.DataFrame:
    """The golden table with the mean of the new table, `new`, and how far it `moved`; NaN where it has none."""
    means = golden_means(table, golden["metric"].unique()).drop(columns="seeds")
    joined = golden.merge(means, on=GOLDEN_IDENTITY, how="left", suffixes=("", "_"))
    joined = joined.rename(columns={"value": "golden", "value_": "new"})
    return joined.assign(moved=(joined["new"] - joined["golden"]).abs())


def golden_means(table: pd.DataFrame, metrics: Iterable[str] = GOLDEN_METRICS) -> pd.DataFrame:
    """Mean over seeds of the metrics that a golden file keeps, and of how many seeds: columns value and seeds. Of a
    table that has none of them all are kept."""
    last = table[table["selection"] == "last"]
    kept = last[last["metric"].isin([*metrics])]
    kept = last if kept.empty else kept
    return kept.groupby(GOLDEN_IDENTITY, as_index=False).agg(value=("value", "mean"), seeds=("value", "size"))
