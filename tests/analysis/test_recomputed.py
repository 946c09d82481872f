"""The committed ledger is what an independent recomputation from the CSVs gives, and errs as rarely as it promises."""

import numpy as np
import pytest
import recomputed

from experiments.analysis import judging, statistics

SIMULATED = 1000


@pytest.fixture(scope="module")
def ledger():
    """Claim -> its line, and its deciding comparisons with their recomputed effects; claims about costs, which are
    ratios of times, and those that are not run or not testable are left out."""
    lines = recomputed.read("claims")
    compared = recomputed.read("comparisons")
    found = {}
    for claim, own in compared[compared["decides"] == "yes"].groupby("claim_id", sort=False):
        of_claim = lines[(lines["claim_id"] == claim) & (lines["decides"] == "yes")]
        line = of_claim[of_claim["stem"] == own["stem"].iloc[0]].iloc[0]
        if line["verdict"] not in ("measured", "not run", "not testable"):
            rows = [(row, recomputed.effects(row)) for row in own.itertuples()]
            found[claim] = (line, rows)
    return found


@pytest.fixture(scope="module")
def families(ledger):
    """(paper, context) -> the claims that Holm adjusts together: those of a table in one context."""
    together = {}
    for claim, (line, _) in ledger.items():
        where = (claim[:-3], *line[["stem", "profile", "dataset", "backbone", "dim", "protocol"]])
        together.setdefault(where, []).append(claim)
    return together


def family(paper):
    """How many claims of a paper have a p: all but those of bounds alone."""
    compared = recomputed.read("comparisons")
    own = compared[(compared["decides"] == "yes") & compared["claim_id"].str.startswith(f"{paper}-")]
    of_rows = own["kind"].isin(recomputed.BY_ROWS).groupby(own["claim_id"]).all()
    return 15 - int(of_rows.sum())


def test_every_comparison_is_recomputed_from_the_tables(ledger):
    known, checked = recomputed.read("comparisons"), 0
    assert len(known) > 350 and len(ledger) > 60
    for _, rows in ledger.values():
        for row, values in rows:
            p = recomputed.p_values(row, values)
            effect = -values.mean() if row.direction == "lower" else values.mean()
            if row.kind != "bound":
                constant = float(row.baseline) if row.baseline.replace(".", "").isdigit() else 0.0
                shown = 100 * np.expm1(effect) if row.relative else effect + constant
                assert row.effect == pytest.approx(shown, rel=2e-3, abs=2e-4), row
            below = recomputed.is_below(row)
            assert (row.reason == "below the pretrained features") == below, row
            if not row.reason:
                assert (row.outcome, len(values)) == (recomputed.outcome(p), row.seeds), row
                checked += 1
    assert checked > 200


def test_every_verdict_is_recomputed_from_its_comparisons(ledger, families):
    for (paper, *_), claims in families.items():
        p = {"supported": {}, "contradicted": {}}
        for claim in claims:
            own = [(row, recomputed.p_values(row, values)) for row, values in ledger[claim][1]]
            tested = [({} if row.reason else p_of) for row, p_of in own if row.kind not in recomputed.BY_ROWS]
            if tested:
                p["supported"][claim] = max(p_of.get("supported", 1.0) for p_of in tested)
                smallest = min(p_of.get("contradicted", 1.0) for p_of in tested)
                p["contradicted"][claim] = min(1.0, len(tested) * smallest)
            if any(row.kind in recomputed.BY_ROWS and row.outcome == "contradicted" for row, _ in own):
                p["contradicted"][claim] = 0.0
        after = {name: recomputed.holm(values, family(paper)) for name, values in p.items()}
        for claim in claims:
            line, rows = ledger[claim]
            outcomes = [row.outcome for row, _ in rows]
            reasons = {row.reason for row, _ in rows}
            expected = recomputed.word(
                outcomes, after["supported"].get(claim, 0.0), after["contradicted"].get(claim, 0.0), line["universal"]
            )
            if reasons & {"below the pretrained features", "not learned"}:
                expected = "not interpretable"
            assert (line["verdict"], line["k"], line["n"]) == (expected, outcomes.count("supported"), len(rows)), claim


def test_of_null_ledgers_few_contain_a_false_verdict(ledger, families, capsys):
    """All true effects zero, with the recorded covariances of the comparisons of a table: in under 5 % any claim of a
    paper comes out supported, and in under 5 % contradicted. A claim of equivalence alone is true then."""
    generator = np.random.default_rng(0)
    false = {}
    for (paper, *_), claims in families.items():
        drawn = {}  # by number of seeds: what comparisons of one table share
        p = {name: np.full((SIMULATED, len(claims)), np.nan) for name in ("supported", "contradicted")}
        outcomes = []
        for place, claim in enumerate(claims):
            rows = [(row, values) for row, values in ledger[claim][1] if row.kind != "bound" and len(values) > 1]
            of_claim, p_of_claim = [], {"supported": [], "contradicted": []}
            for row, values in rows:
                n = len(values)
                shared = drawn.setdefault(n, generator.standard_normal((SIMULATED, n, n)))
                null = shared @ (values - values.mean()) / np.sqrt(n - 1)
                margin = -np.log1p(-row.margin / 100) if row.relative else row.margin
                found = statistics.KINDS[row.kind](null, recomputed.unit(row, row.smallest_effect), margin)
                order = [name for name in ("supported", "contradicted", "equivalent") if name in found]
                of_claim.append(np.select([found[name] < 0.05 for name in order], order, "open"))
                for name in p_of_claim:
                    p_of_claim[name].append(found[name])
            outcomes.append(np.stack(of_claim, axis=-1) if rows else None)
            if rows:
                p["supported"][:, place] = np.max(p_of_claim["supported"], axis=0)
                p["contradicted"][:, place] = np.minimum(1, len(rows) * np.min(p_of_claim["contradicted"], axis=0))
        after = {name: statistics.holm(values, family(paper)) for name, values in p.items()}
        for place, claim in enumerate(claims):
            if outcomes[place] is None:
                continue
            line, rows = ledger[claim]
            how = (after["supported"][:, place], after["contradicted"][:, place], bool(line["universal"]))
            words = judging.decided(outcomes[place], *how)
            untrue = ["contradicted"] + ["supported"] * any(row.kind != "equivalence" for row, _ in rows)
            for name in untrue:
                any_yet = false.setdefault((paper, name), np.zeros(SIMULATED, bool))
                any_yet |= words == name
    shares = {key: any_yet.mean() for key, any_yet in false.items()}
    with capsys.disabled():
        print("".join(f"\n{paper}: false {name} in {100 * share:.1f} %" for (paper, name), share in shares.items()))
    assert len(shares) == 10 and max(shares.values()) < 0.05
