"""What the papers claim, the test of each claim, and the verdict our numbers allow.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect that counts. Published sizes belong to the published data sets and networks, so a test asks for
a direction and for a size that counts, not for the printed number.

A cell of the results table is written "METHOD" or "METHOD;name=value;other=low..high": the named settings must match
and every other setting of the row must be at its default (DEFAULTS); a range averages the levels found in it.
"A - B" subtracts cell B from cell A, seed by seed. A number is a constant. Rows of a study without images have
dataset "synthetic" and belong to every data set of their experiment.

Metrics, beside those of dmlrepro.metrics (R@1, P@1, RP, MAP@R, mAP@1000 in percent, class_ and feature_diversity):
  W2                       mean distance of proxies to the training embeddings matched with them, on the unit sphere
  W2/delta                 the same in the numerical study of pfml Prop. 1 and Cor. 1, over delta; a row per point set
                           (`seed`), where delta < d_min / (2 (1 + 1/n)) and the proxies start near distinct samples
  seconds_ratio            time of a training step over that of ProxyNCA++ in the same process; `seed` = repetition
  retrieval_seconds_ratio  the same for embedding and ranking the test images
  rms_relative_error       of the fitted log C_M(kappa), kappa = 10..50, root mean square, percent; setting "dim=M"
  gradient_error           largest relative deviation of autograd's d loss / d cos from nivmf Eqs. 8-9; a row per draw
  norm_sensitivity         largest |d logit / d log norm| of the embedding over the largest |logit|; a row per draw
  entropy_slope            rank correlation of the posterior's entropy with the norm, direction fixed; a row per draw
  norm_corruption_correlation  mean over images of the rank correlation of embedding norm with corruption strength;
                           settings "corruption=crop", "corruption=occlusion", "corruption=blur"
  norm_auroc               area under the ROC curve of the norm, images the cosine model retrieves right against wrong
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TESTS", "ClaimTest", "Estimate", "Part", "class_bootstrap", "detectable_effect", "equivalence"]
__all__ += ["final_rows", "holm", "paired_difference", "parse_cell", "ranking", "t_interval", "trend", "verdicts"]

LEVEL = 0.05  # of every test: intervals are 95 %, those of equivalence tests 90 % (two one-sided tests at 5 %)
MIN_SEEDS = 5
DEFAULTS = {"label_noise": 0.0, "retrieval": "cosine"}  # what a row that does not name these settings has
SYNTHETIC = "synthetic"  # the dataset of a study without images
# numbers are compared within one value of each of these only
CONTEXT = ["experiment", "profile", "dataset", "backbone", "dim", "protocol"]
COLUMNS = ["paper", *CONTEXT, "method", "setting", "seed", "selection", "step", "metric", "value"]


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    kind: "difference": the subject against every baseline; "trend": the fitted change of the metric from the
        lowest to the highest level of the subject's range; "equivalence": every level of the subject within `margin`
        of the baseline; "exact": every row on the claimed side of the constant baseline, up to `margin`.
    direction: where the subject is claimed to lie, "higher" or "lower"; "flat" for an equivalence.
    smallest_effect: the least mean effect that counts, in the unit of the metric, percent when `relative`.
    judged_at_quick: exact mathematics and ratios of costs need no real images, so profile quick may judge them.
    """

    kind: str
    subject: str
    baselines: tuple[str, ...]
    metric: str
    direction: str
    smallest_effect: float = 0.0
    margin: float = 0.0
    relative: bool = False
    judged_at_quick: bool = False


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim: all its parts must hold.

    rationale: why the smallest effects and margins are what they are. untested_parts: what the claim says beyond the
    parts; without parts, why nothing is tested. protocol: only rows whose protocol contains this text; when empty,
    every protocol but MLRC.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str
    untested_parts: str = ""
    protocol: str = ""


def _higher(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "higher", smallest_effect=by, **options)


def _lower(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "lower", smallest_effect=by, **options)


def _falling(subject, by, metric="R@1") -> Part:
    return Part("trend", subject, (), metric, "lower", smallest_effect=by)


def _flat(subject, baseline, within, metric="R@1", **options) -> Part:
    return Part("equivalence", subject, (baseline,), metric, "flat", margin=within, **options)


def _cheaper(subject, constant, metric="seconds_ratio") -> Part:
    return Part("difference", subject, (constant,), metric, "lower", judged_at_quick=True)


def _at_most(subject, constant, metric, tolerance=0.0) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", margin=tolerance, judged_at_quick=True)


def _at_least(subject, constant, metric, tolerance=0.0) -> Part:
    return Part("exact", subject, (constant,), metric, "higher", margin=tolerance, judged_at_quick=True)


def _drop(method, setting) -> str:
    return f"{method} - {method};{setting}"


_JOINT = "ProxyAnchor+EL-nivMF"
_NOISE, _EUCLIDEAN = "label_noise=0.2", "retrieval=euclidean"

# fmt: off
_TESTS = (
    ClaimTest("pfml-01", "10_pfml_retrieval",
        (_higher("PFML", "CPML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: the spread over seeds these papers report; less would not survive another implementation",
        "the other methods of Table 1, SOP, DINO and ViT backbones"),
    ClaimTest("pfml-02", "10_pfml_retrieval",
        (_higher("PFML", "CPML", by=1.0),),
        "1 point: under a third of the smallest published gain (3.5)",
        "SOP; CPML's repulsion, which the paper does not define (here the contrastive hinge)"),
    ClaimTest("pfml-03", "10_pfml_retrieval",
        (_higher("PFML", "ProxyAnchor", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: a third of the smallest published gain (1.5)",
        "HIST, ProxyGML, SOP"),
    ClaimTest("pfml-04", "11_pfml_label_noise",
        (_higher(f"PFML;{_NOISE}", f"ProxyAnchor;{_NOISE}", by=1.0),),
        "1 point: a sixth of the smaller published gain (6.0)"),
    ClaimTest("pfml-05", "11_pfml_label_noise",
        (_lower(_drop("PFML", _NOISE),
                *(_drop(name, _NOISE) for name in ("ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet"))),),
        "0.5 points of drop: under a quarter of the published margin over ProxyAnchor (2.3)",
        "HIST"),
    ClaimTest("pfml-06", "12_pfml_proxy_alignment",
        (_lower("PFML", "SoftTriple", by=10.0, metric="W2", relative=True),),
        "10 percent of W2: a third of the published reduction (33)"),
    ClaimTest("pfml-07", "12_pfml_proxy_alignment",
        (_at_most("PFML;M=1..1000", "1", "W2/delta", tolerance=1e-3),
         _at_least("CPML;M=1..1000", "1", "W2/delta"),
         _lower("PFML", "CPML", "ProxyNCA++", "ProxyAnchor", by=10.0, metric="W2", relative=True)),
        "the bounds are exact, but for 0.1 percent of the optimiser; 10 percent of W2: a quarter of the published 38"),
    ClaimTest("pfml-08", "13_pfml_ablation_proxies",
        (_higher("PFML;M=1..30", "PFML;M=0"),),
        "0.5 points, as for pfml-01; all M > 0 count alike, so that none is chosen by its result"),
    ClaimTest("pfml-09", "13_pfml_ablation_proxies",
        (_flat("PFML;M=5..30", "PFML;M=10..20", within=1.5),
         _lower("PFML;M=1..2", "PFML;M=10..20", by=0.2)),
        "stable: within 1.5 points, three times the spread over seeds; a slight fall: 0.2 points"),
    ClaimTest("pfml-10", "14_pfml_ablation_delta",
        (_flat("PFML;delta=0.1..0.35", "PFML;delta=0.2", within=1.5),),
        "relatively stable: within 1.5 points of the default, three times the spread over seeds"),
    ClaimTest("pfml-11", "15_pfml_ablation_alpha",
        (_higher("PFML;alpha=1..6", "PFML;alpha=0", by=1.0),
         _higher("PFML;alpha=3..6", "PFML;alpha=1..2")),
        "1 point for the published 5 to 6 of alpha = 0; 0.5 between strong and mild decay",
        "the authors' own alpha = 0, which they do not define (here the logarithmic limit)"),
    ClaimTest("pfml-12", "16_pfml_ablation_repulsion_radius",
        (_falling("PFML;delta_rep=0.2..0.45", by=1.0),),
        "1 point over the published range: a seventh of the smaller published fall (6.8)"),
    ClaimTest("pfml-13", "17_pfml_cost",
        (_cheaper("PFML;M=30", "1.1"),
         _cheaper("PFML;M=30 - PFML;M=5", "0.1")),
        "barely: less than 10 percent, over twice the published growth (4.2 over ProxyNCA, 3.5 from M = 5)",
        "the published hardware"),
    ClaimTest("pfml-14", "10_pfml_retrieval",
        (_higher("PFML;dim=16..64",
                 *(f"{name};dim=16..64" for name in ("ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"))),),
        "0.5 points: a third of the smallest published gain (1.4)",
        "HIST, ProxyGML, SOP"),
    ClaimTest("pfml-15", "10_pfml_retrieval",
        tuple(_higher("PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive", metric=name)
              for name in ("P@1", "RP", "MAP@R")),
        "0.5 points: half of the smallest published gain (1.1)",
        "HIST and the other baselines of Tables 6 and 7", protocol="mlrc"),

    ClaimTest("nivmf-01", "20_nivmf_retrieval",
        (_higher("EL-nivMF", "ProxyNCA++"),),
        "0.5 points: a third of the published gain on birds (1.6), above the reported spread (0.4)",
        "SOP, and that few samples per class make the gain small there"),
    ClaimTest("nivmf-02", "20_nivmf_retrieval",
        (_higher(_JOINT, "ProxyAnchor", by=0.3),),
        "0.3 points: a quarter of the published gain on cars (1.2)",
        "SOP"),
    ClaimTest("nivmf-03", "20_nivmf_retrieval",
        tuple(_higher(subject, "MultiSimilarity", "Margin", metric=name)
              for subject in ("EL-nivMF", _JOINT) for name in ("R@1", "mAP@1000")),
        "0.5 points, as for pfml-01",
        "SOP, where the paper's own table disagrees"),
    ClaimTest("nivmf-04", "21_nivmf_ablation_omega",
        (_higher(f"{_JOINT};omega=0.1..10", f"{_JOINT};omega=0", f"{_JOINT};omega=100..1000"),
         _flat(f"{_JOINT};omega=0.1..10", f"{_JOINT};omega=1", within=2.0)),
        "0.5 points over either end, for the mean of omega in 0.1..10, where every released value lies, so that none "
        "is chosen by its result; a plateau: within 2 points of omega = 1, half of the published gain",
        "SOP, and the size of the gain (4 points)"),
    ClaimTest("nivmf-05", "22_nivmf_distances",
        (_higher("nivMF", "L2", by=0.3),
         _higher("L2", "Cosine", by=0.3)),
        "0.3 points: the spread the paper reports for these models"),
    ClaimTest("nivmf-06", "22_nivmf_distances",
        (_higher("EL-nivMF", "EL-vMF", "B-vMF", "KL-vMF", by=0.3),
         _higher("EL-vMF", "B-vMF", by=0.3),
         _higher("B-vMF", "KL-vMF", by=0.1),
         _higher("EL-vMF - B-vMF", "B-vMF - KL-vMF", by=0.1),
         _flat("EL-vMF", "L2", within=0.6)),
        "0.3 points as for nivmf-05, 0.1 where the paper calls a gap small; within one standard deviation: 0.6, about "
        "the largest it reports for these models"),
    ClaimTest("nivmf-07", "22_nivmf_distances",
        (_higher("nivMF", "Cosine"),
         _higher("EL-nivMF", "nivMF", by=0.1)),
        "0.5 points for the first step (published 1.7 and 2.1), 0.1 for the second (0.3 and 0.6)"),
    ClaimTest("nivmf-08", "22_nivmf_distances",
        (*(_lower(f"{name};{_EUCLIDEAN}", name, by=0.1)
           for name in ("L2", "Cosine", "nivMF", "EL-vMF", "B-vMF", "KL-vMF", "EL-nivMF")),
         _higher(_drop("L2", _EUCLIDEAN),
                 *(_drop(name, _EUCLIDEAN) for name in ("Cosine", "nivMF", "EL-vMF", "B-vMF", "KL-vMF", "EL-nivMF")),
                 by=0.1)),
        "0.1 points: the claim is about all models, however little each loses; the same for the order of the losses",
        "the size of the largest loss (5.34 points)"),
    ClaimTest("nivmf-09", "26_nivmf_cost_and_samples",
        (_cheaper("EL-nivMF;samples=5", "1.25"),
         *(_cheaper(name, "1.05") for name in ("EL-vMF", "B-vMF", "KL-vMF")),
         _flat("EL-nivMF", "1", within=0.1, metric="retrieval_seconds_ratio", judged_at_quick=True)),
        "the paper's 25 percent at the most samples it names, 5; negligible: less than 5 percent; unchanged: within 10",
        "the published hardware"),
    ClaimTest("nivmf-10", "24_nivmf_norm_is_certainty",
        (*(_lower(f"EL-nivMF;corruption={name}", "0", by=0.1, metric="norm_corruption_correlation")
           for name in ("crop", "occlusion", "blur")),
         _higher("EL-nivMF", "0.5", by=0.02, metric="norm_auroc")),
        "a rank correlation of 0.1, taken within images and so within classes; 0.02 of AUROC above chance",
        "images whose ambiguity only a person can see"),
    ClaimTest("nivmf-11", "25_nivmf_diversity",
        tuple(_higher(*pair, by=by, metric=name, relative=True)
              for name in ("class_diversity", "feature_diversity")
              for *pair, by in (("EL-vMF", "Cosine", 3.0), ("EL-nivMF", "Cosine", 3.0), ("EL-nivMF", "EL-vMF", 1.0))),
        "3 percent over cosine: half of the smallest published rise (6); 1 of non-isotropy (published 1 to 14)"),
    ClaimTest("nivmf-12", "26_nivmf_cost_and_samples",
        (_lower("EL-nivMF;normalizer=none", "EL-nivMF", by=2.0),),
        "severely: 2 points, as much as the whole gain of the method over cosine"),
    ClaimTest("nivmf-13", "26_nivmf_cost_and_samples",
        (_flat("EL-nivMF;samples=5..20", "EL-nivMF;samples=20", within=1.0),),
        "alike: within 1 point of N = 20, half of the method's gain over cosine"),
    ClaimTest("nivmf-14", "23_nivmf_normalizer",
        tuple(_at_most(f"quadratic;dim={dim}", "0.1", "rms_relative_error") for dim in (128, 512)),
        "0.1 percent as printed, read as the root mean square of the relative error, the reading whose unit is percent",
        "insensitivity to the coefficients; linear and exponential fits"),
    ClaimTest("nivmf-15", "22_nivmf_distances",
        (*(_at_most(name, "0", "gradient_error", tolerance=1e-6) for name in ("L2", "Cosine")),
         _at_most("Cosine", "0", "norm_sensitivity", tolerance=1e-6),
         *(_at_most(name, "0", "entropy_slope") for name in ("L2", "B-vMF"))),
        "identities, up to the rounding of float64; flatter posteriors: a negative rank correlation in every draw"),
)
# fmt: on
TESTS: dict[str, ClaimTest] = {test.claim_id: test for test in _TESTS}


# --- verdicts ---------------------------------------------------------------------------------------------------------


_LINE = (
    "claim_id",
    "verdict",
    "reason",
    "direction",
    "comparison",
    "metric",
    "effect",
    "low",
    "high",
    "unit",
    "n",
    *CONTEXT,
)
_LINE += ("p", "p_holm", "detectable", "class_low", "class_high", "untested_parts", "notebook")


def verdicts(
    table: pd.DataFrame,
    claim_ids,
    *,
    profile: str | None = None,
    selection: str | None = None,
    hits: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Judge claims, print a line for each, return the lines as a DataFrame.

    Comparisons are of per-seed effects, paired by seed, with Student's t. A comparison
      holds  if the 95 % interval lies on the claimed side of zero and the mean reaches the smallest effect that
             counts; an equivalence, if two one-sided tests at 5 % put it within the margin; an exact statement, if
             every row obeys;
      fails  if the interval lies wholly beyond the smallest effect (the margin) on the other side, at a level divided
             by the number of comparisons of the claim; an exact statement, if any row disobeys.
    A claim is contradicted if a comparison fails, else "not run" if rows are missing, else supported if all comparisons
    hold, else inconclusive. With fewer than five seeds only exact statements are judged, at profile quick only exact
    statements and ratios of costs; over a part of a claimed range nothing is judged. The direction is always printed.

    The line shows the comparison that speaks least for the claim. p is the largest of the claim's comparisons
    (intersection-union), two-sided for a difference, the larger one-sided for an equivalence; p_holm adjusts it within
    the paper, counting the paper's claims that are not in this call as p = 1. The verdict rests on the unadjusted
    interval and the line says when it does not survive Holm. `detectable` is the effect that this many seeds find
    in four cases of five. Intervals are 95 %, those of an equivalence 90 %.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        claim_ids: e.g. ["pfml-01", "pfml-02"].
        profile: only rows of this profile.
        selection: "last", "val_best" or "test_best"; None: as in `chosen`.
        hits: counts by class for the columns class_low and class_high, see `class_bootstrap`.

    Raises:
        ValueError: an unknown claim id, or a table that lacks columns or holds two values for one run.
    """
    import pandas as pd

    claim_ids = list(claim_ids)
    unknown = [claim_id for claim_id in claim_ids if claim_id not in TESTS]
    if unknown:
        raise ValueError(f"claim_ids: no test is stated for {unknown}; stated: {', '.join(TESTS)}")
    rows = final_rows(table, selection)
    if profile is not None:
        rows = rows[rows["profile"] == profile]
    resampled = None if hits is None else _resampled(hits, draws=2000, seed=0)
    lines = [line for claim_id in claim_ids for line in _lines(TESTS[claim_id], rows, resampled)]
    frame = pd.DataFrame(lines, columns=[*_LINE])
    papers = frame["claim_id"].str.partition("-")[0]
    for (paper, *_), family in frame.groupby([papers, *CONTEXT[1:]], dropna=False):
        size = max(sum(claim_id.startswith(f"{paper}-") for claim_id in TESTS), len(family))
        frame.loc[family.index, "p_holm"] = holm(family["p"], size)
    for line in frame.itertuples(index=False):
        print(_sentence(line))
    return frame


def _lines(test: ClaimTest, rows: pd.DataFrame, resampled: Cells | None) -> list[dict]:
    """A line per context that has all rows of the test; without one, a single line that says what is missing."""
    line = dict.fromkeys(_LINE, math.nan) | dict.fromkeys(
        ("reason", "direction", "comparison", "metric", "unit", *CONTEXT), ""
    )
    line |= {"claim_id": test.claim_id, "n": 0, "untested_parts": test.untested_parts, "notebook": test.notebook}
    if not test.parts:
        return [line | {"verdict": "not testable here", "reason": test.untested_parts}]
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    of_study = all(part.kind == "exact" for part in test.parts)
    found = [_judge_claim(test, cells, context, resampled) for context, cells in _contexts(rows, of_study)]
    found = found or [_judge_claim(test, {}, {}, None)]
    nearest = min(found, key=lambda each: each["missing"])
    found = [each for each in found if each["verdict"] != "not run"] or [nearest]
    own = [each for each in found if test.notebook.endswith(each.get("experiment") or "?")]
    return [line | {name: each[name] for name in each if name in _LINE} for each in own or found]


def _contexts(rows: pd.DataFrame, of_study: bool):
    """(context, cells) of every context; a study without images belongs to all data sets of its experiment."""
    for (experiment, profile), group in rows.groupby(["experiment", "profile"], sort=False):
        study = group["dataset"] == SYNTHETIC
        if of_study or study.all():
            yield dict(zip(CONTEXT, (experiment, profile, SYNTHETIC, "", "", ""))), _cells(group)
            continue
        for context, runs in group[~study].groupby(CONTEXT, dropna=False, sort=False):
            yield dict(zip(CONTEXT, context)), _cells(group[study]) | _cells(runs)


@dataclass(frozen=True)
class _Comparison:
    """One comparison of a claim, judged: it holds, fails, or stays open for the reason given."""

    estimate: Estimate
    part: Part
    compute: tuple  # (function, *arguments after the cells) -> per-seed effects
    as_claimed: bool
    holds: bool
    fails: bool
    why_open: str


def _judge_claim(test: ClaimTest, cells: Cells, context: dict, resampled: Cells | None) -> dict:
    """What the cells of one context say of a claim, as fields of its line."""
    planned, judged = [], []
    missing = [name for part in test.parts for name in _absent(part, cells)]
    for part in test.parts:
        try:
            planned += [(part, *each) for each in _comparisons(part, cells)]
        except _MissingRows as error:
            missing.append(str(error))
    count = sum(part.kind != "exact" for part, *_ in planned)
    for part, name, compute in planned:
        try:
            effects = compute[0](cells, *compute[1:])
        except _MissingRows as error:
            missing.append(str(error))
        else:
            judged.append(_judge(name, part, compute, effects, count, _obstacle(part, cells, context, effects)))
    fails = [each for each in judged if each.fails]
    opens = [each for each in judged if each.why_open]
    if fails:
        verdict, reason = "contradicted", "by " + "; ".join(dict.fromkeys(each.estimate.name for each in fails))
    elif missing:
        verdict, reason = "not run", "no rows for " + "; ".join(dict.fromkeys(missing))
    elif opens:
        verdict, reason = "inconclusive", "; ".join(dict.fromkeys(each.why_open for each in opens))
    else:
        verdict, reason = "supported", ""
    line = context | {"verdict": verdict, "reason": reason, "direction": "", "missing": len(set(missing))}
    if not judged:
        return line
    agree = sum(each.as_claimed for each in judged)
    whole = {len(judged): "as claimed", 0: "not as claimed"}
    candidates = fails or opens or judged
    shown = max(candidates, key=lambda each: (not each.as_claimed, np.nan_to_num(each.estimate.p, nan=-1)))
    line |= {"direction": whole.get(agree, f"{agree} of {len(judged)} as claimed"), "metric": shown.part.metric}
    line |= {"comparison": shown.estimate.name, "detectable": detectable_effect(shown.estimate.n) * shown.estimate.sd}
    line |= {name: getattr(shown.estimate, name) for name in ("effect", "low", "high", "n")}
    line["unit"] = "%" if shown.part.relative else ""
    if not missing:
        line["p"] = np.max([each.estimate.p for each in judged if each.part.kind != "exact"]) if count else math.nan
    if resampled is not None and shown.part.metric == "R@1":
        with suppress(_MissingRows):
            line["class_low"], line["class_high"] = _percentiles(shown.compute[0](resampled, *shown.compute[1:]))
    return line


def _absent(part: Part, cells: Cells):
    """The cells of a part that the table does not have."""
    expressions = [each for each in (part.subject, *part.baselines) if not _is_constant(each)]
    for cell in (term for expression in expressions for term in expression.split(" - ")):
        try:
            _levels(cells, cell, part.metric)
        except _MissingRows as error:
            yield str(error)


def _comparisons(part: Part, cells: Cells):
    """(name, compute) of every comparison of a part."""
    if part.kind == "trend":
        yield f"trend of {part.subject}", (_slope, part.subject, part.metric)
        return
    for baseline in part.baselines:
        subjects = [part.subject]
        if part.kind in ("equivalence", "exact"):  # of every level, not of their mean
            method, levels = parse_cell(part.subject)[0], list(_levels(cells, part.subject, part.metric))
            if parse_cell(baseline)[0] == method:  # the baseline is one of the levels
                levels = [setting for setting in levels if [setting] != list(_levels(cells, baseline, part.metric))]
            subjects = [f"{method};{setting}".rstrip(";") for setting in levels]
            if not subjects:
                raise _MissingRows(f"a second level of {part.subject} ({part.metric})")
        for subject in subjects:
            yield f"{subject} vs {baseline}", (_difference, subject, baseline, part.metric, part.relative)


def _obstacle(part: Part, cells: Cells, context: dict, effects: np.ndarray) -> str:
    """Why these effects can settle nothing; empty if they can."""
    if not np.isfinite(effects).all():
        return "a value is not finite"
    if part.kind == "exact":
        return ""
    if context.get("profile") == "quick" and not part.judged_at_quick:
        return "profile quick shows directions only"
    if len(effects) < MIN_SEEDS:
        return f"{len(effects)} of the {MIN_SEEDS} seeds needed"
    if part.kind in ("trend", "equivalence") and ".." in part.subject:
        x = _numbers(part.subject, _levels(cells, part.subject, part.metric))
        low, high = next(value for value in parse_cell(part.subject)[1].values() if isinstance(value, tuple))
        if not np.allclose([x.min(), x.max()], [low, high]):
            return f"covers {x.min():g} to {x.max():g} of {low:g} to {high:g}"
    return ""


def _judge(name: str, part: Part, compute: tuple, effects: np.ndarray, count: int, obstacle: str) -> _Comparison:
    """See `verdicts` for the rules. count: comparisons of the claim, over which a contradiction is adjusted."""
    sign = _SIGN.get(part.direction, 1)
    aligned = sign * effects  # positive: as claimed
    counts = abs(math.log1p(sign * part.smallest_effect / 100)) if part.relative else part.smallest_effect
    if part.kind == "exact":
        obeys = aligned >= -part.margin
        estimate = Estimate(name, sign * aligned.min(), effects.min(), effects.max(), len(effects), math.nan, math.nan)
        as_claimed, holds, fails, why = obeys.all(), obeys.all(), not obeys.all(), ""
    elif part.kind == "equivalence":
        estimate = _estimate(name, effects, _tost(effects, part.margin), 1 - 2 * LEVEL, part.relative)
        as_claimed, holds = abs(effects.mean()) < part.margin, estimate.p < LEVEL
        fails = 2 * count * min(_p_above(effects, part.margin), _p_above(-effects, part.margin)) < LEVEL
        why = f"not shown to lie within {part.margin:g}"
    else:
        estimate = _estimate(name, effects, min(1.0, 2 * _p_above(aligned, 0)), relative=part.relative)
        as_claimed, holds = aligned.mean() > 0, estimate.p < LEVEL and aligned.mean() >= counts
        fails = 2 * count * _p_above(-aligned, counts) < LEVEL
        if estimate.p < LEVEL or (counts and _tost(effects, counts) < LEVEL):
            why = f"smaller than the {part.smallest_effect:g} that count"
        else:
            why = "the interval includes zero" if as_claimed else "not clearly against the claim"
    if part.baselines and _is_constant(part.baselines[0]):  # show the value, not its distance from the constant
        shift = float(part.baselines[0])
        estimate = replace(estimate, **{key: getattr(estimate, key) + shift for key in ("effect", "low", "high")})
    if obstacle or holds or fails:
        why = obstacle
    return _Comparison(estimate, part, compute, bool(as_claimed), holds and not why, fails and not why, why)


def _sentence(line) -> str:
    """One line of the ledger."""
    words = [f"{line.claim_id:<9}{line.verdict}"]
    if line.direction:
        interval = "" if math.isnan(line.low) else f" [{line.low:+.3g}, {line.high:+.3g}]{line.unit}"
        folds = line.protocol if "MLRC" in line.protocol else ""  # two lines of one context: separated, concatenated
        where = ", ".join(str(each) for each in (line.profile, line.dataset, line.backbone, folds) if each)
        effect = f"{line.comparison}: {line.metric} {line.effect:+.3g}{interval}"
        words += [line.direction, effect, f"n = {line.n}", where]
    if not math.isnan(line.p):
        lost = " (not after Holm)" if line.verdict == "supported" and line.p_holm >= LEVEL else ""
        words.append(f"p {line.p:.2g}, Holm {line.p_holm:.2g}{lost}")
    if math.isfinite(line.detectable):
        words.append(f"detectable {line.detectable:.2g}")
    if not math.isnan(line.class_low):
        words.append(f"over classes [{line.class_low:+.3g}, {line.class_high:+.3g}]")
    words.append(line.reason)
    if line.untested_parts and line.verdict != "not testable here":
        words.append(f"untested: {line.untested_parts}")
    return " | ".join(word for word in words if word)


# --- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean effect over n seeds with interval, p value and standard deviation, in the metric's unit or percent."""

    name: str
    effect: float
    low: float
    high: float
    n: int
    p: float
    sd: float


def paired_difference(
    table, subject: str, baseline: str, metric: str, *, relative: bool = False, selection: str | None = None
) -> Estimate:
    """Subject minus baseline over the seeds both have: mean, 95 % t interval, two-sided p.

    table: tidy results of one experiment, data set, backbone, dim, protocol. subject, baseline: cells (see the header).
    relative: the change in percent, computed on logarithms.
    Raises ValueError on a malformed table, LookupError naming a missing cell.
    """
    effects = _difference(_one_context(table, selection), subject, baseline, metric, relative)
    return _estimate(f"{subject} vs {baseline}", effects, _two_sided(effects), relative=relative)


def equivalence(
    table, subject: str, baseline: str, metric: str, margin: float, *, selection: str | None = None
) -> Estimate:
    """Two one-sided tests of |subject - baseline| < margin; the 90 % interval lies within it just when p < 0.05."""
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}")
    effects = _difference(_one_context(table, selection), subject, baseline, metric)
    return _estimate(f"{subject} vs {baseline}", effects, _tost(effects, margin), 1 - 2 * LEVEL)


def trend(table, subject: str, metric: str, *, selection: str | None = None) -> Estimate:
    """Fitted change from lowest to highest level of the subject's range, e.g. "PFML;alpha=0..6"; t over seeds."""
    effects = _slope(_one_context(table, selection), subject, metric)
    return _estimate(f"trend of {subject}", effects, _two_sided(effects))


def ranking(
    table, subject: str, baselines, metric: str, *, direction="higher", selection: str | None = None
) -> list[Estimate]:
    """The subject against each baseline, p doubled one-sided in the claimed direction.

    It ranks first if every comparison holds; the largest p is that of the whole (intersection-union, no adjustment).
    """
    cells, sign = _one_context(table, selection), _SIGN[direction]
    effects = {baseline: _difference(cells, subject, baseline, metric) for baseline in baselines}
    return [
        _estimate(f"{subject} vs {baseline}", each, min(1.0, 2 * _p_above(sign * each, 0)))
        for baseline, each in effects.items()
    ]


def t_interval(values, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student t interval of the mean of `values` (n,); NaN for n < 2."""
    from scipy import stats

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def holm(p_values, family: int | None = None) -> np.ndarray:
    """Holm's step-down adjusted p values in the order given; NaN stays NaN and is not counted.

    family: how many hypotheses there are if not all are at hand. The absent ones count as p = 1, so that knowing them
    can only lower the result. ValueError if it is less than the p values given.
    """
    p_values = np.asarray(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p_values))
    family = len(known) if family is None else family
    if family < len(known):
        raise ValueError(f"family counts {family} hypotheses but {len(known)} p values are given")
    order = known[np.argsort(p_values[known])]
    adjusted = np.full(p_values.shape, math.nan)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * (family - np.arange(len(order)))))
    return adjusted


def detectable_effect(n: int, power: float = 0.8, level: float = LEVEL) -> float:
    """Mean difference, in standard deviations of the differences, that a two-sided t test of n pairs finds."""
    from scipy import optimize, stats

    if n < 2:
        return math.inf
    critical = stats.t.ppf(1 - level / 2, n - 1)
    return optimize.brentq(lambda effect: stats.nct.sf(critical, n - 1, effect * math.sqrt(n)) - power, 1e-3, 1e3)


def class_bootstrap(
    hits: pd.DataFrame, subject: str, baseline: str, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """How far other test classes could move the mean difference of R@1: 95 % percentile interval, in percent.

    hits: a row per method, setting, seed and class; columns method, setting, seed, class_id, hits, queries (counts).
    The trained networks stay as they are, so this stands beside the interval over seeds and does not replace it.
    """
    return _percentiles(_difference(_resampled(hits, draws, seed), subject, baseline, "R@1"))


_SIGN = {"higher": 1, "lower": -1}


def _p_above(values: np.ndarray, bound: float) -> float:
    """One-sided p of "the mean lies above bound"; NaN for n < 2."""
    from scipy import stats

    if len(values) < 2:
        return math.nan
    distance, error = values.mean() - bound, values.std(ddof=1) / math.sqrt(len(values))
    if error == 0:  # the same in every seed
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, len(values) - 1))


def _two_sided(values: np.ndarray) -> float:
    return min(1.0, 2 * min(_p_above(values, 0), _p_above(-values, 0)))


def _tost(values: np.ndarray, margin: float) -> float:
    return max(_p_above(values, -margin), _p_above(-values, -margin))


def _estimate(name: str, values: np.ndarray, p: float, level: float = 1 - LEVEL, relative: bool = False) -> Estimate:
    effect, low, high = values.mean(), *t_interval(values, level)
    sd = values.std(ddof=1) if len(values) > 1 else math.nan
    if relative:  # the values are logarithms of ratios
        effect, low, high, sd = (100 * math.expm1(number) for number in (effect, low, high, sd))
    return Estimate(name, float(effect), low, high, len(values), p, float(sd))


# --- from the table to effects by seed --------------------------------------------------------------------------------


class _MissingRows(LookupError):
    """A cell that the table does not have; the message names it."""


# (method, metric) -> setting -> seed -> value; a value may be an array of bootstrap draws
Cells = dict[tuple[str, str], dict[str, dict[int, np.ndarray]]]


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the step chosen on validation classes, where a method's protocol has them, else at the last one."""
    import pandas as pd

    run = [*CONTEXT, "method", "setting", "seed"]
    validated = pd.MultiIndex.from_frame(table.loc[table["selection"] == "val_best", run])
    at_best = pd.MultiIndex.from_frame(table[run]).isin(validated)
    return table[table["selection"] == np.where(at_best, "val_best", "last")]


def final_rows(table: pd.DataFrame, selection: str | None = None) -> pd.DataFrame:
    """The table's rows at one selection (None: as `chosen`) and at the last step of each run; ValueError on a malformed
    table."""
    import pandas as pd

    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(f"table lacks the columns {missing}; a results table has {COLUMNS}")
    rows = table[COLUMNS].copy()
    for name in COLUMNS:
        if name in ("seed", "step", "value"):
            rows[name] = pd.to_numeric(rows[name])
        elif name != "dim":
            rows[name] = rows[name].astype(object).where(rows[name].notna(), "").astype(str)
    rows = chosen(rows) if selection is None else rows[rows["selection"] == selection]
    run = [*CONTEXT, "method", "setting", "seed", "metric"]
    last = rows.groupby(run, dropna=False)["step"].transform("max")
    rows = rows[(rows["step"] == last) | last.isna()].drop_duplicates([*run, "value"])
    twice = rows[rows.duplicated(run, keep=False)]
    if len(twice):
        row = twice.iloc[0]
        raise ValueError(
            f"table holds different values of {row.metric} for {row.method!r}, setting {row.setting!r}, "
            f"seed {row.seed} on {row.dataset!r} in experiment {row.experiment!r}; keep one"
        )
    return rows


def _one_context(table: pd.DataFrame, selection: str) -> Cells:
    rows = final_rows(table, selection)
    several = [name for name in CONTEXT if rows[name].nunique(dropna=False) > 1]
    if several:
        raise ValueError(f"table mixes several values of {several}; filter it to one of each")
    return _cells(rows)


def _cells(rows: pd.DataFrame) -> Cells:
    cells: Cells = {}
    columns = ["method", "metric", "setting", "seed", "value"]
    for method, metric, setting, seed, value in rows[columns].itertuples(index=False, name=None):
        cells.setdefault((method, metric), {}).setdefault(setting, {})[seed] = value
    return cells


def _resampled(hits: pd.DataFrame, draws: int, seed: int) -> Cells:
    """R@1 in percent of every cell under each resampling of the classes, (draws,) per seed; all cells share them."""
    missing = [
        name for name in ("method", "setting", "seed", "class_id", "hits", "queries") if name not in hits.columns
    ]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}")
    classes = np.unique(hits["class_id"])
    times = np.random.default_rng(seed).multinomial(len(classes), np.full(len(classes), 1 / len(classes)), size=draws)
    cells: Cells = {}
    for (method, setting, run), rows in hits.fillna({"setting": ""}).groupby(["method", "setting", "seed"]):
        weights = times[:, np.searchsorted(classes, rows["class_id"])]
        recall = 100 * (weights @ rows["hits"].to_numpy()) / np.maximum(weights @ rows["queries"].to_numpy(), 1)
        cells.setdefault((method, "R@1"), {}).setdefault(setting, {})[run] = recall
    return cells


def _percentiles(effects: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(effects.mean(axis=0), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _value(text: str) -> float | tuple[float, float] | str:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else float(text)
    except ValueError:
        return text


def _is_constant(cell: str) -> bool:
    return isinstance(_value(cell), float)


def parse_cell(cell: str) -> tuple[str, dict]:
    """Method and settings: "PFML;alpha=3..6" -> ("PFML", {"alpha": (3.0, 6.0)})."""
    method, *settings = cell.split(";")
    return method, {name: _value(text) for name, _, text in (each.partition("=") for each in settings if each)}


def _matches(wanted: dict, found: dict) -> bool:
    for name in wanted.keys() | found.keys():
        want, value = wanted.get(name, DEFAULTS.get(name)), found.get(name, DEFAULTS.get(name))
        if isinstance(want, tuple):
            if not (isinstance(value, float) and want[0] - 1e-9 <= value <= want[1] + 1e-9):
                return False
        elif want != value:
            return False
    return True


def _levels(cells: Cells, cell: str, metric: str) -> dict[str, dict]:
    """setting -> seed -> value of every level that a cell covers."""
    method, wanted = parse_cell(cell)
    settings = cells.get((method, metric), {})
    levels = {setting: seeds for setting, seeds in settings.items() if _matches(wanted, parse_cell(f";{setting}")[1])}
    if not levels:
        raise _MissingRows(f"{cell} ({metric})")
    return levels


def _numbers(cell: str, settings) -> np.ndarray:
    """The value in each setting of the one name for which the cell has a range."""
    names = [name for name, value in parse_cell(cell)[1].items() if isinstance(value, tuple)]
    if len(names) != 1:
        raise ValueError(f"a trend needs one setting with a range, as in 'PFML;alpha=0..6', got {cell!r}")
    return np.array([parse_cell(f";{setting}")[1][names[0]] for setting in settings])


def _stack(series: list[dict], what: str) -> np.ndarray:
    """(len(series), seeds, ...) over the seeds that all of them have, in order."""
    seeds = sorted(set.intersection(*(set(each) for each in series)))
    if not seeds:
        raise _MissingRows(f"one seed common to {what}")
    return np.array([[each[seed] for seed in seeds] for each in series], dtype=float)


def _by_seed(cells: Cells, expression: str, metric: str) -> dict:
    """seed -> value of an expression "A - B"; the levels of a range are averaged."""
    terms = [_levels(cells, term, metric) for term in expression.split(" - ")]
    seeds = sorted(set.intersection(*(set(values) for term in terms for values in term.values())))
    means = [{seed: np.mean([values[seed] for values in term.values()], axis=0) for seed in seeds} for term in terms]
    return {seed: means[0][seed] - sum(mean[seed] for mean in means[1:]) for seed in seeds}


def _difference(cells: Cells, subject: str, baseline: str, metric: str, relative: bool = False) -> np.ndarray:
    """Subject minus baseline by seed, (n, ...); the logarithm of their ratio when relative."""
    one = _by_seed(cells, subject, metric)
    other = dict.fromkeys(one, _value(baseline)) if _is_constant(baseline) else _by_seed(cells, baseline, metric)
    one, other = _stack([one, other], f"{subject} and {baseline}")
    if not relative:
        return one - other
    if min(one.min(), other.min()) <= 0:
        raise ValueError(f"{metric} of {subject} and {baseline} must be positive to compare them in percent")
    return np.log(one / other)


def _slope(cells: Cells, subject: str, metric: str) -> np.ndarray:
    """Least-squares slope over the levels of the subject's range, times the range; by seed, (n, ...)."""
    levels = _levels(cells, subject, metric)
    x = _numbers(subject, levels)
    if len(x) < 2:
        raise _MissingRows(f"a second level of {subject} ({metric})")
    weights = (x - x.mean()) * np.ptp(x) / np.square(x - x.mean()).sum()
    return np.tensordot(weights, _stack(list(levels.values()), subject), axes=1)
