"""The ledger made from results/: every verdict on every claim, kept as results/claims.csv."""

import functools
import io
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.analysis import claims, judging, ledger, stored, tables
from experiments.files import repository_root, write_text
from experiments.report import catalogue

COLUMNS = (
    *("claim_id", "scale", "decides", "verdict", "reason", "direction", "role", "tuned", "comparison", "metric"),
    *("effect", "low", "high", "interval", "values", "unit", "n", "required", "p_holm", "detectable", "seeds_needed"),
    *("profile", "dataset", "label", "backbone", "device", "notebook", "stem", "frozen"),
)


def made() -> ledger.Ledger:
    """All that is said of the claims of data/claims.csv."""
    return ledger.Ledger(lines(), here(), without_verdict())


@functools.cache
def lines() -> pd.DataFrame:
    """Every verdict that results/ allows, as `ledger.ordered` has them: `Judged.verdicts` with label, plain_label and
    stem."""
    tests = catalogue.claims()
    judged = [
        saved.judged(study.claims).verdicts.assign(
            label=saved.label,
            plain_label=saved.plain_label,
            stem=saved.stem,
            frozen="" if _is_pilot(saved) else claims.frozen()["commit"][:12],
        )
        for study in map(catalogue.find, dict.fromkeys(test.notebook for test in tests.values()))
        for saved in study.in_results()
    ]
    if not judged:  # results/ has no table yet
        return pd.DataFrame(columns=[*COLUMNS, "plain_label"])
    whole = pd.concat(judged, ignore_index=True)
    whole.loc[whole["dataset"] == tables.SYNTHETIC, ["label", "plain_label"]] = "no images"
    shown = [name for name in COLUMNS if name in whole]
    return ledger.ordered(whole.drop_duplicates(shown), tests)


def _is_pilot(saved: stored.Stored) -> bool:
    return saved.profile == "small" and saved.stem in claims.frozen()["pilots"]


def by_claim() -> dict[str, pd.DataFrame]:
    """The lines of each claim that has any."""
    return dict(list(lines().groupby("claim_id")))


@functools.cache
def here() -> dict[str, str]:
    """The verdict here of every claim of data/claims.csv."""
    tests, lines_of = catalogue.claims(), by_claim()
    return {
        claim_id: ledger.verdict(lines_of[claim_id], tests[claim_id]) if claim_id in lines_of else judging.NOT_RUN
        for claim_id in claims.stated()
    }


def without_verdict() -> dict[str, str]:
    """Every claim of data/claims.csv that the ledger lacks, and why."""
    tests, judged = catalogue.claims(), set(lines()["claim_id"])
    return {claim_id: _why_without(tests.get(claim_id)) for claim_id in claims.stated() if claim_id not in judged}


def _why_without(test: claims.ClaimTest | None) -> str:
    if test is None:
        return "its paper has no notebooks yet"
    if not test.parts:
        return test.untested_parts
    needed = ", ".join(dict.fromkeys(part.required for part in test.parts))
    return f"no table in results/ has the rows for its test ({test.parts[0].subject}: {needed})"


def forget() -> None:
    """Read results/ anew."""
    lines.cache_clear()
    here.cache_clear()


def path() -> Path:
    return repository_root() / "results" / "claims.csv"


def csv() -> str:
    return lines()[[*COLUMNS]].to_csv(index=False, float_format="%.4g", lineterminator="\n")


def differences() -> list[str]:
    """The claims whose lines in results/claims.csv are not what results/ says: another text, or a number that differs
    by more than one in its last printed digit, as another processor may round it."""
    try:
        now, there = (pd.read_csv(file, dtype=str, keep_default_na=False) for file in (io.StringIO(csv()), path()))
    except (FileNotFoundError, ValueError):  # it is missing or no table
        return ["all claims"]
    if list(now) != list(there) or list(now["claim_id"]) != list(there["claim_id"]):
        return sorted(set(now["claim_id"]) ^ set(there.get("claim_id", ()))) or [
            "the columns or the order of the lines"
        ]
    differs = now != there
    for name in ("effect", "low", "high", "p_holm", "detectable", "seeds_needed"):
        one, other = (pd.to_numeric(table[name], errors="coerce") for table in (now, there))
        digit = 10.0 ** (np.floor(np.log10(one.abs().clip(lower=1e-300))) - 3)  # of four
        differs[name] &= ~((one - other).abs() <= 1.01 * digit.clip(lower=1e-9))
    return list(dict.fromkeys(now.loc[differs.any(axis=1), "claim_id"]))


def check() -> None:
    """Print whether the ledger made now is that of results/claims.csv; the sentence is the regression test."""
    differing = differences()
    same = f"no, not for {', '.join(differing)}: python -m experiments report" if differing else "yes"
    print(f"the ledger made from results/ is results/claims.csv: {same}")


def write() -> bool:
    """Write results/claims.csv where it does not say what results/ says; returns whether it did not."""
    forget()
    differs = bool(differences())
    if differs:
        write_text(path(), csv())
    return differs
