"""The judge on tables whose verdict is known, and on families of tables whose truth is known."""

import math

import numpy as np
import pandas as pd
import pytest
from made_for_claims import hits_of, rows, spread
from scipy import special

from experiments.analysis import claims, judging
from experiments.analysis.claims import ClaimTest, control, flat, higher, lower, rising
from experiments.analysis.comparing import ClaimResult, Comparison, Reason
from experiments.analysis.judging import Verdict
from experiments.analysis.statistics import detectable_effect, equivalence, noninferiority, rank, superiority
from experiments.analysis.tables import FEATURES, START

METHODS = ("PFML", "CPML", "A", "B", "ProxyNCA++", "ProxyAnchor", "SoftTriple", "MultiSimilarity", "Triplet")
TUNED = dict.fromkeys(METHODS, 24)
FAMILY = {f"pfml-{i:02}": ClaimTest(f"pfml-{i:02}", "x", (higher("PFML", "CPML", by=1.0),), "") for i in range(1, 16)}


def judged(table, *parts, claim_id="pfml-02", **options):
    """The verdict line of one claim with these parts, among fifteen of its paper."""
    test = ClaimTest(claim_id, "x", parts or FAMILY["pfml-02"].parts, "")
    options = {"trials": TUNED} | options
    return judging.judge(table, FAMILY | {claim_id: test}, [claim_id], **options)


def line(table, *parts, **options):
    return judged(table, *parts, **options).verdicts.iloc[0]


def table(*cells, start=10.0, metric="R@1", **context):
    """Rows of cells and of the network that their training began with."""
    begun = [] if start is None else rows(START, spread(start), metric=metric, **context)
    return pd.DataFrame([row for cell in (*cells, begun) for row in cell])


def pfml_against_cpml(difference, sd=0.3, start=10.0, **context):
    """A table whose paired differences have exactly this mean and standard deviation."""
    base = spread(70, sd=2.0, seed=1)
    cells = rows("CPML", base, **context), rows("PFML", base + spread(difference, sd=sd), **context)
    return table(*cells, start=start, **context)


def test_the_interval_of_an_equivalence_is_that_of_two_one_sided_tests():
    found = line(pfml_against_cpml(0.1, sd=0.5), flat("PFML", "CPML", within=1.0))
    half = special.stdtrit(found.seeds - 1, 0.95) * 0.5 / math.sqrt(found.seeds)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half)) and found.interval == "90 %"


@pytest.mark.parametrize(
    ("difference", "sd", "verdict", "reason"),
    [
        (3.0, 0.5, "supported", ""),
        (3.0, 1.2, "inconclusive", Reason.HOLM),  # p = 0.005: one of fifteen may have it by chance
        (3.0, 5.0, "inconclusive", ""),
        (0.9, 0.1, "equivalent", ""),  # clear, but less than the SESOI
        (0.0, 0.1, "equivalent", ""),
        (-0.5, 0.1, "equivalent", ""),
        (-1.2, 0.5, "inconclusive", Reason.HOLM),
        (-3.0, 0.5, "contradicted", ""),
    ],
)
def test_verdicts_follow_the_interval_and_holm(difference, sd, verdict, reason):
    row = line(pfml_against_cpml(difference, sd))
    assert (row.verdict, row.reason, row.seeds, row.tuned) == (verdict, reason, 5, "yes")
    assert row.effect == pytest.approx(difference, abs=1e-9) and row.low < row.effect < row.high


@pytest.mark.parametrize(
    ("far", "sd", "verdict"),
    [(0.2, 0.1, "supported"), (3.0, 0.3, "contradicted"), (0.9, 2.0, "inconclusive"), (-3.0, 0.3, "contradicted")],
)
def test_what_is_said_to_be_stable_is_so_inside_its_margin_and_otherwise_outside(far, sd, verdict):
    base = spread(70, sd=2.0, seed=1)
    data = table(rows("PFML", base, "M=1"), rows("PFML", base + spread(far, sd=sd), "M=5"))
    assert line(data, flat("PFML;M=1..5", "PFML;M=1", within=1.5)).verdict == verdict


@pytest.mark.parametrize(("change", "verdict"), [(4.0, "supported"), (0.05, "equivalent"), (-4.0, "contradicted")])
def test_a_trend_has_the_same_outcomes(change, verdict):
    data = table(*(rows("PFML", spread(70 + change * x, sd=0.1, seed=x), f"M={x}") for x in (0, 1)))
    assert line(data, rising("PFML;M=0..1", by=1.0)).verdict == verdict


def test_fewer_seeds_than_planned_have_no_verdict_however_large_the_effect():
    data = pfml_against_cpml(20, 0.01)
    for seeds in (4, 1):
        row = line(data[data.seed < seeds])
        assert (row.verdict, row.reason, row.seeds) == (Verdict.NOT_RUN, Reason.SEEDS, seeds)
        assert math.isnan(row.low) and len(row["values"].split(" and ")) == seeds
    test = ClaimTest("pfml-02", "x", (higher("PFML", "CPML"),), "", seeds=10)
    verdicts = judging.judge(data, {"pfml-02": test}, trials=TUNED).verdicts
    assert (verdicts.verdict[0], verdicts.low[0] > 0) == (Verdict.NOT_RUN, True), "an interval, but no verdict"
    whole = data.assign(backbone="mobilenet_v2", dataset="cub-subset", profile="small")  # five are planned there
    for seeds, verdict in ((5, Verdict.SUPPORTED), (4, Verdict.NOT_RUN)):
        four = dict.fromkeys(METHODS, 4)  # trials, of the learning rate alone
        judged = judging.judge(whole[whole.seed < seeds], {"pfml-02": test}, trials=four, pretrained=False)
        assert judged.verdicts.verdict[0] == verdict
    uneven = judging.judge(whole, {"pfml-02": test}, trials=four | {"CPML": 3}, pretrained=False).verdicts
    assert (uneven.verdict[0], uneven.reason[0]) == (Verdict.INCONCLUSIVE, Reason.TUNING)


def test_quick_and_values_that_no_seed_changes_decide_nothing_and_a_diverged_run_is_not_dropped():
    data = table(rows("PFML", [75.0] * 8), rows("CPML", [70.0] * 8))
    row = line(data)
    assert (row.verdict, row.reason, row.seeds) == (Verdict.INCONCLUSIVE, Reason.CONSTANT, 1)
    row = line(pfml_against_cpml(20, 0.01, profile="quick", dataset="glyphs"))
    assert (row.verdict, row.reason) == (Verdict.NOT_RUN, Reason.SEEDS)
    data = pfml_against_cpml(3)
    data.loc[data.index[0], "value"] = math.nan
    row = line(data)
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)


def test_beside_a_constant_a_method_is_compared_with_as_a_method():
    data = table(rows("PFML", spread(75)), rows("CPML", spread(70, seed=1)))
    comparisons = judged(data, higher("PFML", "50", "CPML", by=1.0)).comparisons.set_index("comparison")
    assert comparisons["effect"].tolist() == pytest.approx([75, 5]) and comparisons["zero"].tolist() == [50, 0]
    few = judged(data[data.seed < 2], higher("PFML", "50", "CPML", by=1.0)).comparisons.set_index("comparison")
    assert abs(float(few.loc["PFML vs CPML", "values"].split(" and ")[0])) < 10


def learned_table(pfml, cpml):
    return table(rows("PFML", spread(pfml)), rows("CPML", spread(cpml, seed=1)), start=60.0)


def features(value):
    return pd.DataFrame(rows(FEATURES, [value] * 5, dim=0))


@pytest.mark.parametrize(
    ("pfml", "cpml", "part", "verdict"),
    [
        (70, 65, higher("PFML", "CPML"), "supported"),
        (70, 50, higher("PFML", "CPML"), "not interpretable"),  # the baseline has not learned
        (70, 50, higher("PFML", "CPML", may_fail=True), "supported"),  # as the claim says
        (55, 50, higher("PFML", "CPML", may_fail=True), "not interpretable"),
        (65, 70, higher("PFML", "CPML"), "contradicted"),
        (50, 70, higher("PFML", "CPML"), "contradicted"),  # the side that is ahead has learned
        (50, 55, higher("PFML", "CPML"), "not interpretable"),
        (70, 70.01, higher("PFML", "CPML", by=2.0), "equivalent"),
        (55, 55.01, higher("PFML", "CPML", by=2.0), "not interpretable"),
        (50, 70, lower("PFML", "CPML", may_fail=True), "supported"),
        (50, 70, lower("PFML", "CPML"), "not interpretable"),
        (70, 50, lower("PFML", "CPML"), "contradicted"),
    ],
)
def test_an_outcome_needs_that_its_methods_have_learned(pfml, cpml, part, verdict):
    row = line(learned_table(pfml, cpml), part)
    assert row.verdict == verdict
    if verdict == "not interpretable":
        assert row.reason in (Reason.UNLEARNED, Reason.BELOW)


def test_the_better_side_must_reach_the_pretrained_features_and_of_no_pretraining_the_initial_network():
    def with_features(value, **options):
        return line(pd.concat([learned_table(70, 65), features(value)]), higher("PFML", "CPML"), **options)

    assert with_features(69.9).verdict == "supported", "the worse side may lie below"
    assert (with_features(70.1).verdict, with_features(70.1).reason) == ("not interpretable", Reason.BELOW)
    assert with_features(70.1, pretrained=False).verdict == "supported"
    rising_to = table(*(rows("PFML", spread(60.0 + 5 * x, seed=x), f"M={x}") for x in range(3)))
    for value, verdict in ((69.0, "supported"), (71.0, "not interpretable")):
        of_trend = line(pd.concat([rising_to, features(value)]), rising("PFML;M=0..2", by=1.0))
        assert of_trend.verdict == verdict, "of a trend the best level"


def test_learned_is_a_gain_over_the_same_seeds_start_whose_interval_excludes_zero():
    start = spread(60, sd=5, seed=2)

    def gains(gain):
        return table(rows("PFML", start + gain), rows("CPML", start + 20), rows(START, start), start=None)

    assert line(gains(spread(10, sd=1)), lower("PFML", "CPML")).verdict == "supported"
    assert line(gains(spread(0.5, sd=1)), lower("PFML", "CPML")).reason == Reason.UNLEARNED
    without = gains(spread(10, sd=1))
    without = without[without["method"] != START]
    assert line(without, lower("PFML", "CPML")).verdict == Verdict.NOT_RUN, "the network before training is missing"
    assert line(pd.concat([without, features(60.0)]), lower("PFML", "CPML")).verdict == "supported"


def test_of_a_distance_the_methods_must_have_learned_on_map_at_r_and_of_a_trend_one_level():
    spreads = [rows("PFML", spread(1.0), metric="W2"), rows("CPML", spread(3.0), metric="W2")]
    scores = [rows("PFML", spread(30), metric="MAP@R"), rows("CPML", spread(30, seed=1), metric="MAP@R")]
    part = lower("PFML", "CPML", metric="W2")
    assert line(table(*spreads, *scores, metric="MAP@R"), part).verdict == "supported"
    assert line(table(*spreads, *scores, metric="MAP@R", start=31.0), part).verdict == "not interpretable"
    assert line(table(*spreads, metric="MAP@R"), part).reason == Reason.ROWS
    for last, start, verdict in ((50.0, 60.0, "supported"), (60.0, 80.0, "not interpretable")):
        levels = [rows("PFML", spread(value, seed=x), f"M={x}") for x, value in enumerate((70.0, 65.0, last))]
        assert line(table(*levels, start=start), claims.falling("PFML;M=0..2", by=1.0)).verdict == verdict


def against(*gaps, universal=False, sd=0.2):
    """The line of a claim against rivals that lie so far below."""
    base, names = spread(70, sd=2.0, seed=1), METHODS[2 : 2 + len(gaps)]
    cells = [rows(name, base - spread(gap, sd=sd, seed=i)) for i, (name, gap) in enumerate(zip(names, gaps))]
    test = ClaimTest("pfml-02", "x", (higher("PFML", *names, by=1.0),), "", universal=universal)
    tests = FAMILY | {"pfml-02": test}
    return judging.judge(table(rows("PFML", base), *cells), tests, ["pfml-02"], trials=TUNED).verdicts.iloc[0]


@pytest.mark.parametrize(
    ("gaps", "sd", "verdict", "k"),
    [
        ((4, 4), 0.2, "supported", 2),
        ((4, 0), 0.2, "mixed", 1),
        ((4, -4), 0.2, "mixed", 1),
        ((4, 1), 1.5, "supported in part", 1),
        ((-4, 0), 0.2, "contradicted", 0),
        ((-4, 0.8), 0.7, "contradicted", 0),
        ((0, 0.1), 0.2, "equivalent", 0),
        ((0, 0.8), 0.5, "equivalent", 0),  # half equivalent, the other open
        ((0, 0.8, 0.8), 0.5, "inconclusive", 0),
        ((1, 1), 1.5, "inconclusive", 0),
    ],
)
def test_the_verdict_of_several_comparisons_counts_those_that_are_supported(gaps, sd, verdict, k):
    row = against(*gaps, sd=sd)
    assert (row.verdict, row.k, row.n) == (verdict, k, len(gaps))


def test_one_counterexample_contradicts_a_universal_claim_alone_and_the_least_favourable_is_shown():
    assert against(4, 4, -4).verdict == "mixed" and against(4, 4, -4, universal=True).verdict == "contradicted"
    assert against(4, 4, 1, sd=1.5, universal=True).verdict == "supported in part"
    assert against(4, -4).comparison == "PFML vs B" and against(-4, 4).comparison == "PFML vs A"
    assert against(4, 0.2).comparison == "PFML vs B"


def test_controls_and_what_they_lack_never_decide():
    part = higher("PFML", "CPML", by=1.0)
    for other in (control(higher("CPML", "PFML")), control(higher("PFML", "absent"))):
        row = line(pfml_against_cpml(3), part, other)
        assert (row.verdict, row.k, row.n) == ("supported", 1, 1)
    only = line(pfml_against_cpml(3), control(part))
    assert only.verdict == Verdict.NOT_TESTABLE


def test_a_sentence_about_all_protocols_is_judged_by_all_of_them():
    data = [pfml_against_cpml(gap, protocol=f"MLRC {name}") for gap, name in ((3, "separated"), (-3, "concatenated"))]
    test = ClaimTest("pfml-02", "x", (higher("PFML", "CPML"),), "", protocol="mlrc", decides="all")
    (row,) = judging.judge(pd.concat(data), {"pfml-02": test}, trials=TUNED).verdicts.itertuples()
    assert (row.verdict, row.k, row.n, row.protocol) == ("mixed", 1, 2, "MLRC separated + MLRC concatenated")


def test_comparisons_that_mix_devices_or_fingerprints_are_marked():
    data = pfml_against_cpml(3)
    places = {("PFML", "", seed): [("CPU", "a")] for seed in range(5)}
    for other, mark in ((("CPU", "a"), ""), (("CPU", "b"), "fingerprints"), (("GPU", "b"), "devices")):
        environments = places | {("CPML", "", seed): [other] for seed in range(5)}
        judgement = judged(data, environments=environments)
        assert judgement.verdicts["mixes"].tolist() == judgement.comparisons["mixes"].tolist() == [mark]
        assert judgement.verdicts["verdict"].tolist() == ["supported"], "it is marked and still decides"
    machines = {(name, "", seed): [("CPU", "ab"[seed % 2])] for name in ("PFML", "CPML") for seed in range(5)}
    assert judged(data, environments=machines).verdicts["mixes"].tolist() == ["fingerprints"]


def test_holm_counts_claims_and_comparisons_for_contradicted_and_the_largest_p_is_that_of_supported():
    row = line(pfml_against_cpml(3, 1.2))
    assert row.p < 0.05 and row.p_holm == pytest.approx(15 * row.p)
    alone = {"pfml-02": FAMILY["pfml-02"]}
    assert judging.judge(pfml_against_cpml(3, 1.2), alone, trials=TUNED).verdicts.verdict[0] == "supported"
    assert against(-2.0, sd=0.55).verdict == "contradicted"
    several = against(-2.0, 0.8, 0.8, 0.8, 0.8, sd=0.55)
    assert (several.verdict, several.reason) == ("inconclusive", Reason.HOLM)
    base = spread(70, sd=2.0, seed=1)
    rivals = rows("A", base - spread(4.0, sd=0.2)), rows("B", base - spread(3.0, sd=1.2))
    row = line(table(rows("PFML", base), *rivals), higher("PFML", "A", "B", by=1.0))
    assert (row.verdict, row.reason, row.k) == ("inconclusive", Reason.HOLM, 2)


def test_rows_of_other_settings_protocols_selections_steps_and_notebooks_do_not_mix_in():
    data = pfml_against_cpml(3)
    noise = [data.assign(setting="alpha=1", value=0), data.assign(protocol="mlrc", value=0)]
    noise += [data.assign(selection="test_best", value=0), data.assign(step=50, value=0)]
    verdicts = judged(pd.concat([data, *noise])).verdicts
    assert len(verdicts) == 1 and verdicts.effect[0] == pytest.approx(3)
    data = pd.concat([pfml_against_cpml(-3), pfml_against_cpml(3, experiment="10_pfml_retrieval")])
    test = ClaimTest("pfml-02", "10_pfml_retrieval", (higher("PFML", "CPML"),), "")
    assert list(judging.judge(data, {"pfml-02": test}, trials=TUNED).verdicts.verdict) == ["supported"]


def test_each_data_set_has_its_own_line_and_its_own_parts_and_further_data_are_marked():
    sets = {"cub-subset": 3, "cars": -3, "omniglot": 3}
    data = pd.concat([pfml_against_cpml(gap, dataset=name) for name, gap in sets.items()])
    verdicts = judged(data).verdicts.set_index("dataset")
    assert dict(verdicts["verdict"]) == {"cub-subset": "supported", "cars": "contradicted", "omniglot": "supported"}
    assert dict(verdicts["role"]) == {"cub-subset": "named", "cars": "named", "omniglot": "out of scope"}
    parts = (higher("PFML", "CPML", on=("cub", "sop")), lower("PFML", "CPML", on=("cars",)))
    for name, gap, verdict in (
        ("cub-subset", 3, "supported"),
        ("cars-subset", -3, "supported"),
        ("cars", 3, "contradicted"),
        ("omniglot", 3, "supported"),  # as on birds
    ):
        assert line(pfml_against_cpml(gap, dataset=name), *parts).verdict == verdict
    assert claims.named("pfml-01") == ["cub", "cars", "sop"] and claims.named("ccp-01") == ["mnist"]
    assert claims.named("of no paper") == ["cub"]


def test_a_claim_without_rows_is_not_run_and_one_without_parts_says_why():
    row = line(table(rows("PFML", spread(70))))
    assert (row.verdict, row.reason, row.detail) == ("not run", Reason.ROWS, "CPML (R@1)")
    tests = {"pfml-99": ClaimTest("pfml-99", "99", (), "", "a survey of readers")}
    row = judging.judge(pfml_against_cpml(1), tests).verdicts.iloc[0]
    assert (row.verdict, row.untested_parts) == ("not testable", "a survey of readers")
    test = ClaimTest("pfml-99", "x", (higher("PFML", "CPML"),), "", not_testable="no unit is stated")
    row = judging.judge(pfml_against_cpml(3), {"pfml-99": test}, trials=TUNED).verdicts.iloc[0]
    assert (row.verdict, row.k, row.n) == ("not testable", 1, 1), "what its comparisons show stands beside it"


STUDY = {"dataset": "synthetic", "backbone": "", "metric": "error", "profile": "quick"}


@pytest.mark.parametrize(("problems", "verdict"), [(2, "not interpretable"), (18, "supported"), (0, "not run")])
def test_a_claim_says_nothing_where_its_precondition_does_not_hold(problems, verdict):
    precondition = claims.at_least("PFML", "3", "problems", about="training", precondition=True)
    counted = pd.DataFrame(rows("PFML", [problems] * 5 * bool(problems), metric="problems"))  # 0: no rows
    row = line(pd.concat([pfml_against_cpml(3.0), counted]), *FAMILY["pfml-02"].parts, precondition)
    assert (row.verdict, row.n) == (verdict, 1)


def test_exact_statements_hold_or_fall_by_every_row():
    part = claims.at_most("PFML;M=1..10", "1", "error", tolerance=1e-3)
    good = [rows("PFML", [0.9, 0.95], f"M={m}", **STUDY) for m in (1, 10)]
    row = line(table(*good, start=None), part)
    assert (row.verdict, row.interval, row.low, row.high, row.k, row.n) == ("supported", "range", 0.9, 0.95, 2, 2)
    one_row = table(*good, start=None)
    one_row.loc[one_row.index[0], "value"] = 1.05
    assert line(one_row, part).verdict == "mixed", "of two levels one fails"
    assert line(table(*good[:1], start=None), part).verdict == "not run", "the range is measured in part"
    counterexample = table(rows("PFML", [1.05], "M=1", **STUDY), start=None)
    assert line(counterexample, part).verdict == "contradicted", "which one is enough for"
    identity = claims.at_most("PFML;M=1..10", "1", "error", identity=True)
    assert line(table(*good, start=None), identity).verdict == "true by definition"
    other = claims.at_most("PFML;M=1..10", "2", "error")
    assert line(table(*good, start=None), identity, other).verdict == "supported", "not all of it is"


def test_theorem_and_measurement_are_judged_together():
    part = claims.at_most("PFML;M=1", "1", "error")
    data = pd.concat([table(rows("PFML", [0.9], "M=1", **STUDY), start=None), pfml_against_cpml(-3)])
    data["experiment"], data["profile"] = "x", "small"
    (row,) = judged(data, part, higher("PFML", "CPML")).verdicts.itertuples()
    assert (row.dataset, row.verdict, row.k, row.n) == ("cub-subset", "mixed", 1, 2)


@pytest.mark.parametrize(("ratio", "outcome"), [(1.05, "supported"), (1.4, "contradicted")])
def test_a_ratio_of_times_is_measured_on_this_machine(ratio, outcome):
    quick = {"profile": "quick", "metric": "seconds_ratio", "backbone": "resnet50", "dataset": "synthetic"}
    part = claims.cheaper("PFML;M=30", "1.1")
    data = table(rows("PFML", spread(ratio, sd=0.01), "M=30", **quick), start=None)
    row, compared = line(data, part), judged(data, part).comparisons
    assert (row.verdict, row.seeds, compared["outcome"].tolist()) == ("measured", 5, [outcome])
    assert row.low < ratio < row.high, "the ratio itself, not its distance from 1.1"
    assert line(data[data.seed < 3], part).verdict == "not run"


@pytest.mark.parametrize(("timed", "verdict"), [("resnet50", "measured"), ("conv4", "not run")])
def test_a_claim_about_one_network_looks_at_the_network_of_its_rows(timed, verdict):
    where = {"metric": "seconds_ratio", "backbone": timed, "dataset": "synthetic"}
    timings = table(rows("PFML", spread(1.05, sd=0.01), "M=30", **where), start=None)
    data = pd.concat([timings, pfml_against_cpml(1.0, backbone="squeezenet1_1")])
    data["experiment"], data["profile"] = "x", "small"
    test = ClaimTest("pfml-02", "x", (claims.cheaper("PFML;M=30", "1.1"),), "", network="resnet50")
    row = judging.judge(data, FAMILY | {"pfml-02": test}, ["pfml-02"], trials=TUNED).verdicts.iloc[0]
    assert (row.verdict, row.dataset, row.backbone) == (verdict, "synthetic", timed)


def test_each_kind_has_its_mirror_image():
    values = spread(2.0, seeds=10, sd=0.5)
    for kind in (superiority, rank):
        forward, backward = kind(values, 0.5, 0.5), kind(-values, 0.5, 0.5)
        assert forward["supported"] == pytest.approx(backward["contradicted"])
        assert forward["supported"] < 0.05 < backward["supported"]
    assert noninferiority(values, 0, 0.5)["supported"] < 0.05 and noninferiority(-values, 0, 0.5)["contradicted"] < 0.05
    assert equivalence(values, 0, 3.0)["supported"] < 0.05 and equivalence(values, 0, 1.0)["contradicted"] < 0.05
    assert rank(np.array([1.0, -0.1]), 0.0, 0.0) == {"supported": 1.0, "contradicted": 1.0}
    assert superiority(np.full(5, 0.4), 0.5, 0)["equivalent"] == 0
    assert superiority(np.zeros(5), 0.0, 0)["supported"] > 0.05


@pytest.mark.parametrize(("n", "counts"), [(5, 0.0), (10, 0.0), (10, 1.5)])
def test_a_comparison_at_the_printed_detectable_effect_is_found_four_times_in_five(n, counts):
    generator, hypotheses = np.random.default_rng(7), 15
    effect = detectable_effect(n, 1.0, judging.LEVEL / hypotheses, counts)
    part = higher("A", "B", by=counts)
    test = ClaimTest("p-01", "x", (part,), "")
    detected = 0
    for values in effect + generator.standard_normal((2000, n)):
        claim = ClaimResult(test, {}, (Comparison(part, part.subject, *part.baselines, values),))
        detected += judging.verdict(claim, judging.adjusted([claim], hypotheses)[0])[0] == "supported"
    assert 0.75 <= detected / 2000 <= 0.85

    row = line(pfml_against_cpml(1.4, 1.0))  # as a line prints it
    assert row.detectable == pytest.approx(detectable_effect(5, 1.0, judging.LEVEL / 15, 1.0))


def test_two_values_of_one_run_are_named():
    data = pfml_against_cpml(1)
    with pytest.raises(ValueError, match=r"different values of R@1 for 'CPML'.*seed 0"):
        judged(pd.concat([data, data.assign(value=data.value + (data.method == "CPML"))]))
    assert len(judged(pd.concat([data, data])).verdicts) == 1  # the same run twice is one run


def test_a_verdict_shows_the_interval_over_classes_of_its_own_context():
    data = pd.concat([pfml_against_cpml(3), pfml_against_cpml(3, dataset="cars"), pfml_against_cpml(3, dim=8)])
    near, far = hits_of({"PFML": [0.6] * 9, "CPML": [0.5] * 9}), hits_of({"PFML": [0.9] * 9, "CPML": [0.5] * 9}, dim=8)
    frame = judged(data, hits=pd.concat([near, far])).verdicts.set_index(["dataset", "dim"])
    assert frame.loc[("cub-subset", 64), ["class_low", "class_high"]].tolist() == pytest.approx([10, 10])
    assert frame.loc[("cub-subset", 8), ["class_low", "class_high"]].tolist() == pytest.approx([40, 40])
    assert frame.loc[("cars", 64), ["class_low", "class_high"]].isna().all()
    assert set(frame["verdict"]) == {"supported"}  # as without the hits
