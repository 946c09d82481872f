"""The page of a paper holds all that its claims and results say, and its judgement is written by hand."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from experiments.analysis import claims, ledger, stored
from experiments.analysis.judging import Verdict
from experiments.figures.matrix import MARKS, SHADES
from experiments.files import repository_root
from experiments.report import pages, published, reports, verdicts

PAPERS = list(published.papers().index)
DOCS = repository_root() / "docs"
WRITTEN = ("What the paper says", "What was easy", "What was hard", "What the paper leaves open")
WRITTEN += ("What to bear in mind",)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_has_every_claim_every_line_that_decides_and_what_is_open(paper):
    made = reports.parts(paper)
    assert [claim_id for claim_id in reports.own(paper) if f"| {claim_id} |" not in made["scope"]] == []
    decided = verdicts.lines().query("decides == 'yes' and comparison != ''")
    decided = decided[decided["claim_id"].isin(reports.own(paper))]
    assert made["results"].count(f"| {paper}-") == len(decided)
    still = [
        claim_id
        for claim_id in reports.own(paper)
        if verdicts.here()[claim_id] in (Verdict.INCONCLUSIVE, Verdict.NOT_RUN)
    ]
    assert [claim_id for claim_id in still if f"| {claim_id} |" not in made["open"]] == []
    assert "| `loss." in made["settings"], "the options of its own loss"
    assert f"{paper}_forest.png" in made["results"]


@pytest.mark.parametrize("paper", PAPERS)
def test_links_of_a_page_lead_somewhere_and_its_judgement_is_written(paper):
    text = (DOCS / "papers" / f"{paper}.md").read_text(encoding="utf8")
    links = [link for link in re.findall(r"\]\(([^)# ]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (DOCS / "papers" / link).exists()] == []
    for heading in WRITTEN:
        assert len(text.partition(f"## {heading}\n")[2].partition("\n## ")[0].split()) > 20, heading


def test_no_written_sentence_of_a_page_holds_a_number_that_results_decide():
    for paper in PAPERS:
        text = (DOCS / "papers" / f"{paper}.md").read_text(encoding="utf8")
        for name in reports.parts(paper):
            text = text.replace(pages.made_part(text, name), "")
        assert not re.search(r"R@1 [+−-]?\d|n = \d|\d %|\d seeds", text), paper


def test_the_matrix_as_text_says_what_the_ledger_says():
    table = ledger.matrix(verdicts.lines())
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in reports.matrix_table(PAPERS)}
    for claim_id, words in table.iterrows():
        assert rows[claim_id].endswith(" | ".join(MARKS[word] for word in words) + " |")
    assert set(MARKS) == set(SHADES) == set(Verdict) and len(set(MARKS.values())) == len(MARKS)


def test_effects_in_the_forest_are_those_of_the_ledger():
    rows = reports.forest_rows("plm")
    line = verdicts.lines().query("claim_id == 'plm-11' and decides == 'yes' and dataset == 'cub-subset'").iloc[0]
    (row,) = rows[rows["claim"].str.startswith("11 ") & (rows["place"] == "birds")].itertuples()
    assert (row.effect, row.low, row.high, row.place) == (line.effect, line.low, line.high, "birds")
    known = reports.published_rows("plm")
    assert set(known.loc[known["claim"].str.startswith("13 "), "value"]) == {-7.5}


def test_beside_a_difference_in_recall_stands_that_in_map_of_the_same_runs():
    (row,) = reports.deciding("nivmf").query("claim_id == 'nivmf-01' and place == 'birds'").itertuples()
    table = stored.stored("22_nivmf_distances")[0].table
    rows = table[(table["metric"] == "MAP@R") & (table["setting"] == "") & (table["selection"] == "last")]
    wide = rows.pivot(index="seed", columns="method", values="value")
    difference = (wide["EL-nivMF"] - wide["Cosine"]).mean()
    assert row.metric == "R@1" and reports._other_metric(row).startswith(f"{difference:+.1f}, 95 % ")
    line = next(text for text in reports.results("nivmf").splitlines() if text.startswith("| nivmf-01 "))
    assert reports._other_metric(row) in line


def test_each_mark_has_the_sign_that_its_own_comparison_is_expected_to_have():
    """pfml-07: proxies of CPML above a bound; pfml-06: those of PFML nearer to their images than others'."""
    rows = reports.forest_rows("pfml")
    signs = {
        row.metric: row.claim.splitlines()[0][-3:]
        for row in rows[rows["claim"].str[:2].isin(["06", "07"])].itertuples()
    }
    assert signs == {"W2/delta": "[+]", "W2": "[−]"}


def test_a_published_effect_is_alike_only_where_the_mark_is_of_its_comparison():
    for paper in PAPERS:
        for row in reports.published_rows(paper).itertuples():
            assert row.alike in (True, False) and row.claim.splitlines()[0].rpartition(" ")[2] in ("[+]", "[−]", "[0]")
    plm, pfml = (reports.published_rows(paper) for paper in ("plm", "pfml"))
    assert plm.loc[plm["claim"].str.startswith("12 "), "alike"].all(), "the only comparison of its claim"
    assert not pfml.loc[pfml["claim"].str.startswith("14 "), "alike"].any(), "HIST is not among our methods"


def test_a_paper_without_a_line_says_so(monkeypatch):
    nothing = reports.deciding("pfml").head(0)
    monkeypatch.setattr(reports, "deciding", lambda paper: nothing)
    assert "has a line that decides yet" in reports.results("pfml")
    assert len(reports.forest_rows("pfml")) == 0
    figure = reports.figures("pfml")["pfml_forest"]
    assert "02 beats CPML (no decay) [+]" in [label.get_text() for label in figure.axes[0].get_yticklabels()]
    plt.close("all")


def test_a_verdict_stands_in_the_place_of_its_data_and_of_two_lines_the_first_that_is_run_counts():
    line = {"claim_id": "plm-11", "decides": "yes", "scale": ledger.HERE}
    lines = pd.DataFrame(
        [
            line | {"dataset": "cub-subset", "verdict": Verdict.NOT_RUN},
            line | {"dataset": "cub", "verdict": Verdict.CONTRADICTED},
            line | {"dataset": "omniglot", "verdict": Verdict.INCONCLUSIVE, "decides": ""},
            line | {"dataset": "synthetic", "verdict": Verdict.MEASURED},
            line | {"dataset": "cars", "verdict": Verdict.EQUIVALENT, "scale": ledger.PAPER_SCALE},
        ]
    )
    table = ledger.matrix(lines)
    assert list(table.index) == list(claims.stated())
    expected = {
        "birds": Verdict.CONTRADICTED,
        "cars": Verdict.NOT_RUN,
        "letters": Verdict.NOT_RUN,
        "further": Verdict.MEASURED,
    }
    assert dict(table.loc["plm-11"]) == expected | {"paper scale": Verdict.EQUIVALENT}
    assert set(table.drop("plm-11").to_numpy().flat) == {Verdict.NOT_RUN}
