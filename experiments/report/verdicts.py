"""The ledger made from results/: every verdict on every claim, kept as results/claims.csv."""

import functools
import io
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import variables
from experiments.analysis import claims, judging, results, robustness, stored, tables
from experiments.analysis.comparing import Environments
from experiments.analysis.summaries import Judged
from experiments.files import repository_root, write_text
from experiments.params import Params
from experiments.report import catalogue
from experiments.study import Study
from experiments.training import records, runs
from experiments.training.spec import RunSpec

COLUMNS = (
    *("claim_id", "scale", "decides", "verdict", "k", "n", "reason", "detail", "role", "tuned", "mixes", "universal"),
    *("ingredient", "comparison", "metric", "effect", "low", "high", "interval", "values", "unit", "seeds", "required"),
    *("p", "p_holm", "detectable", "profile", "dataset", "label", "backbone", "dim", "protocol", "device", "notebook"),
    *("stem", "frozen", "revised"),
)
_STATED = ("kind", "direction", "smallest_effect", "margin", "relative")
_SIDES = ("subject", "baseline")
COMPARISON_COLUMNS = (
    *("claim_id", "decides", *_SIDES, "metric", *_STATED, "interpretation", "effect", "low", "high", "seeds", "p"),
    *("outcome", "reason", "tuned", "mixes", "profile", "dataset", "dim", "protocol", "stem"),
)

LATER = "the network was added after results were seen"


@functools.cache
def _judged() -> list[tuple[stored.Stored, Judged]]:
    """What the judge says of every table of results/ that settles claims."""
    studies = map(catalogue.find, dict.fromkeys(test.notebook for test in catalogue.claims().values()))
    tables_of = [(study, saved) for study in studies for saved in study.in_results()]
    return [(saved, saved.judged(study.claims, environments=_environments(study, saved))) for study, saved in tables_of]


@functools.cache
def lines() -> pd.DataFrame:
    """Every verdict that results/ allows, as `judging.ordered` has them."""
    judged, frozen = [], claims.frozen()
    for saved, of_table in _judged():
        # how far from the paper's training, which is of the whole network: 0 whole, 1 its last blocks, 2 a head alone
        part = saved.parameters.get("train_from")
        pilot = saved.profile == "small" and saved.stem in frozen["pilots"]
        added: dict[str, Any] = {"label": saved.label, "plain_label": saved.plain_label, "stem": saved.stem}
        added["budget"] = saved.table["step"].max()
        added |= {"regime": 2 if part == "head" else 1 if part else 0, "frozen": "" if pilot else frozen["commit"][:12]}
        judged.append(of_table.verdicts.assign(**added))
    if not judged:  # results/ has no table yet
        return pd.DataFrame(columns=[*COLUMNS, "plain_label"])
    whole = pd.concat(judged, ignore_index=True)
    whole.loc[whole["dataset"] == tables.SYNTHETIC, ["label", "plain_label"]] = "no images"
    whole.loc[whole["backbone"].isin(frozen["networks"]) & (whole["revised"] == ""), "revised"] = LATER
    shown = [name for name in COLUMNS if name in whole]
    return judging.ordered(whole.drop_duplicates(shown), catalogue.claims())


@functools.cache
def comparisons() -> pd.DataFrame:
    """Every comparison of the lines that verdicts here rest on, with what its test states."""
    of_claim = {(line.stem, line.profile, line.claim_id): line for line in deciding().values() if line is not None}
    rows = []
    for saved, of_table in _judged():
        for row in of_table.comparisons.itertuples():
            line: Any = of_claim.get((saved.stem, saved.profile, row.claim_id))
            if line is None or not _is_of(line, row):
                continue
            part = row.compared.part
            stated = {name: getattr(part, name) for name in _STATED} | {"stem": saved.stem}
            rows.append(row._asdict() | stated | {name: str(getattr(row.compared, name)) for name in _SIDES})
    order = [*claims.stated()]
    frame = pd.DataFrame(rows, columns=[*COMPARISON_COLUMNS]).drop_duplicates(ignore_index=True)
    return frame.sort_values("claim_id", key=lambda of: of.map(order.index), kind="stable", ignore_index=True)


@functools.cache
def checked() -> pd.DataFrame:
    """The lines with a column per check of `robustness`, which keeps the verdict or not; empty where none was made."""
    tests, lines_of, rows = catalogue.claims(), dict(list(lines().groupby("claim_id"))), {}
    decided = [line for line in deciding().values() if line is not None and line.verdict in judging.DECIDED]
    for saved, _ in _judged():
        if not (here := [line for line in decided if (line.stem, line.profile) == (saved.stem, saved.profile)]):
            continue
        study = catalogue.find(saved.notebook)
        of_table = saved.judged(study.claims, hits=_hits(study, saved)).comparisons
        other = robustness.with_other_metric(study.claims)
        of_other = saved.judged(dict(study.claims) | other).verdicts
        for line in here:
            compared = of_table[(of_table["claim_id"] == line.claim_id) & (of_table["decides"] == "yes")].itertuples()
            compared = [row.compared for row in compared if _is_of(line, row)]
            same = [of_other[name] == getattr(line, name) for name in ("claim_id", "dataset", "backbone", "protocol")]
            words = of_other.loc[np.logical_and.reduce(same), "verdict"] if line.claim_id in other else ()
            word = next(iter(words), None)
            rows[line.Index] = robustness.checked(line, compared, tests[line.claim_id], word, lines_of[line.claim_id])
    robust = pd.DataFrame.from_dict(rows, orient="index", columns=[*robustness.CHECKS])
    return lines()[[*COLUMNS]].join(robust).fillna(dict.fromkeys(robustness.CHECKS, ""))


def _is_of(line: Any, comparison: Any) -> bool:
    """Whether a comparison needs no images or is of the context of a line, which may have several protocols."""
    same = comparison.dataset == line.dataset and str(comparison.protocol) in line.protocol.split(" + ")
    return same or tables.SYNTHETIC in (line.dataset, comparison.dataset)


def _recorded(study: Study, saved: stored.Stored) -> tuple[Params, list[RunSpec], list[tuple[str, str] | None], Path]:
    """Parameters and runs of a table, on what each was trained if it is in results/, and in which file there."""
    file = repository_root() / "results" / saved.profile / "runs" / f"{study.name}.jsonl"
    with variables.unset("DMLREPRO_RECORD"):
        params = study.params_of(saved)
        specs = study.specs_untrained(params)
        return params, specs, runs.environments(specs, file), file


def _environments(study: Study, saved: stored.Stored) -> Environments:
    """On what the runs of a table were trained, where that is not the same for all."""
    environments: dict[tuple[str, str, int], set[tuple[str, str]]] = {}
    _, specs, trained_on, _ = _recorded(study, saved) if saved.mixed else ((), (), (), ())
    for spec, environment in zip(specs, trained_on):
        if environment:
            environments.setdefault((spec.method, spec.setting, spec.seed), set()).add(environment)
    return environments


def _hits(study: Study, saved: stored.Stored) -> pd.DataFrame | None:
    """Correct queries by test class of the runs of a table, None where results/ does not have them all."""
    if saved.profile != "quick":
        params, specs, trained_on, file = _recorded(study, saved)
        with variables.unset("DMLREPRO_RECORD"), suppress(records.NotMeasured):
            if specs and all(trained_on):
                finished = runs.run_all(specs, record=file)
                return results.hits([replace(run, measured_only=True) for run in finished], params)
    return None


@functools.cache
def deciding() -> dict[str, Any]:
    """Claim of data/claims.csv -> the line that its verdict here rests on; None without one."""
    tests, every = catalogue.claims(), lines()
    return {name: judging.deciding(every[every["claim_id"] == name], tests[name]) for name in claims.stated()}


@functools.cache
def here() -> dict[str, str]:
    """The verdict here of every claim of data/claims.csv."""
    tests = catalogue.claims()
    return {claim_id: judging.verdict_here(line, tests[claim_id]) for claim_id, line in deciding().items()}


def forget() -> None:
    """Read results/ anew."""
    for cached in (_judged, lines, comparisons, deciding, here, checked):
        cached.cache_clear()


def made() -> dict[Path, str]:
    """The ledger, and the comparisons that its verdicts rest on: the file and what it should hold."""
    how: dict[str, Any] = {"index": False, "float_format": "%.4g", "lineterminator": "\n"}
    texts = {"claims": checked().to_csv(**how), "comparisons": comparisons().to_csv(**how)}
    return {repository_root() / "results" / f"{name}.csv": text for name, text in texts.items()}


def differences() -> list[str]:
    """The claims whose lines in results/claims.csv or results/comparisons.csv are not what results/ says: another text,
    or a number that differs by more than one in its last printed digit, as another processor may round it."""
    differing: dict[str, None] = {}
    for path, text in made().items():
        try:
            if path.read_text(encoding="utf8") == text:
                continue
            tables_of = [pd.read_csv(of, dtype=str, keep_default_na=False) for of in (io.StringIO(text), path)]
            now, there = (dict(list(table.groupby("claim_id", sort=False))) for table in tables_of)
        except (FileNotFoundError, ValueError, KeyError):  # it is missing or no table
            return ["all claims"]
        differing |= {claim: None for claim in {**now, **there} if not _equal(now.get(claim), there.get(claim))}
    return [*differing]


def _equal(now: pd.DataFrame | None, there: pd.DataFrame | None) -> bool:
    if now is None or there is None or len(now) != len(there) or list(now) != list(there):
        return False
    there = there.set_axis(now.index)
    differs = now != there
    for name in {"effect", "low", "high", "p", "p_holm", "detectable"} & {*now}:
        one, other = (pd.to_numeric(table[name], errors="coerce") for table in (now, there))
        digit = 10.0 ** (np.floor(np.log10(one.abs().clip(lower=1e-300))) - 3)  # of four
        differs[name] &= ~((one - other).abs() <= 1.01 * digit.clip(lower=1e-9))
    return not differs.any(axis=None)


def check() -> None:
    """Print whether the ledger made now is that of results/; the sentence is the regression test."""
    differing = differences()
    same = f"no, not for {', '.join(differing)}: python -m experiments report" if differing else "yes"
    print(f"the ledger made from results/ is results/claims.csv: {same}")


def write() -> bool:
    """Write results/claims.csv and results/comparisons.csv where they are not what results/ says, and say whether."""
    forget()
    if not differences():
        return False
    for path, text in made().items():
        write_text(path, text)
    return True
