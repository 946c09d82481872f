"""The README answers on its first screen, in few words, with what results/ says."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import claims, comparing, ledger, stored
from experiments.analysis.judging import Verdict
from experiments.files import repository_root
from experiments.report import catalogue, costs, published, readme, verdicts

README = repository_root() / "README.md"
ANSWERS = ("At the published scale:", "Highest R@1:", "Rivals in contradicted comparisons:")
ANSWERS += ("Why inconclusive or not interpretable:", "Cost:")


def words(text: str) -> list[str]:
    """The words that a reader sees: no targets of links, comments, bars or marks."""
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return [word for word in re.split(r"[\s|]+", text) if re.search(r"\w", word)]


def test_each_question_is_answered_within_a_minute_of_reading_from_the_top():
    text = README.read_text(encoding="utf8")
    places = [text.index(f"**{answer}**") for answer in ANSWERS]
    assert all(one < other for one, other in pairwise(places))
    assert len(words(text[: text.index("\n", places[-1])])) <= 400
    assert len(text.split()) < 1200


def test_made_links_lead_somewhere():
    links = [link for part in readme.parts().values() for link in re.findall(r"\]\(([^)# ]+)[^)]*\)", part)]
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (repository_root() / link).exists()] == []


def test_the_state_counts_all_claims_and_names_what_is_decided():
    text, here = readme.state(), verdicts.here()
    counted = [re.findall(rf"^\|{word}\|(\d+)\|(\d+)\|", text, re.MULTILINE) for word in Verdict]
    assert sum(int(row[0][0]) for row in counted if row) == len(here)
    assert all(int(frozen) <= int(count) for row in counted for count, frozen in row)
    decided = [claim_id for claim_id, word in here.items() if word == Verdict.CONTRADICTED]
    assert [claim_id for claim_id in decided[: readme.SHOWN] if claim_id not in text] == []


def test_a_verdict_at_the_papers_scale_is_counted(monkeypatch):
    lines = verdicts.lines()
    lines = lines[lines["scale"] == ledger.HERE]
    monkeypatch.setattr(verdicts, "lines", lambda: lines)
    assert "**At the published scale:** not run" in readme.state()
    line = lines[(lines["claim_id"] == "pfml-02") & (lines["dataset"] == "omniglot")].head(1)
    run = line.assign(scale=ledger.PAPER_SCALE, dataset="cub", role="named", decides="yes", verdict="contradicted")
    monkeypatch.setattr(verdicts, "lines", lambda: pd.concat([lines, run]))
    assert "**At the published scale:** 1 contradicted" in readme.state()


def test_rivals_of_contradicted_comparisons_are_counted_by_claim():
    name, count = re.match(r"([^ ]+) \((\d+) claims\)", readme.refuting()).groups()
    table = verdicts.comparisons()
    theirs = (table["decides"] == "yes") & (table["outcome"] == "contradicted")
    mine = table[theirs & table["baseline"].map(lambda side: name in re.split(" - |;", side))]
    assert mine["claim_id"].nunique() == int(count) > 5


def test_why_claims_are_open_is_counted_by_reason():
    here = [word in (Verdict.INCONCLUSIVE, Verdict.NOT_INTERPRETABLE) for word in verdicts.here().values()]
    assert sum(map(int, re.findall(r"\((\d+)\)", readme.why_open()))) == sum(here)


def test_each_paper_has_a_row_with_its_headline_and_its_effects():
    rows = list(readme.headlines())[2:]
    assert len(rows) == len(published.papers())
    shown = next(row for row in rows if "PFML" in row)
    line = verdicts.lines().query("claim_id == 'pfml-03' and dataset == 'omniglot'").iloc[0]
    assert f"{line.metric} −{abs(line.effect):.1f} [−{abs(line.low):.1f}, −{abs(line.high):.1f}]" in shown


def test_the_loss_that_leads_is_named_with_those_that_tie_with_it_where_seeds_suffice(monkeypatch):
    steps = np.linspace(-0.1, 0.1, 10)
    values = {"CPML": 70 + steps, "PFML": 69.9 + 5 * steps[::-1], "SoftTriple": 69 + steps}
    rows = [
        {
            "method": name,
            "mean": scores.mean(),
            "low": 0.0,
            "high": 1.0,
            "tuned": True,
            "untrained": 60.0,
            "values": dict(enumerate(scores)),
        }
        for name, scores in values.items()
    ]
    birds, letters = pd.DataFrame(rows), pd.DataFrame(rows[:1] + rows[2:]).assign(tuned=[True, False])
    ranked = {"birds (a)": birds, "letters (b)": letters, "signs (c)": birds.assign(low=np.nan)}
    monkeypatch.setattr(readme, "rankings", lambda: ranked)
    assert readme.advice().startswith(
        "Highest R@1: on birds, of 3 losses tuned alike, CPML (70.0, untrained 60.0), not told apart from PFML; "
        "on letters, of 2 losses not tuned alike, CPML (70.0, untrained 60.0). "
    )
    monkeypatch.setattr(readme, "rankings", lambda: {"signs (c)": birds.assign(low=np.nan)})
    assert readme.advice().startswith("No data set has the seeds to tell.")


def test_rankings_are_of_birds_cars_and_letters_where_these_are_run():
    ranked = readme.rankings()
    assert len(ranked) <= readme.PANELS
    for title, table in ranked.items():
        assert not set(table["method"]) & comparing.UNTRAINED and table["mean"].is_monotonic_decreasing, title
        assert table["method"].is_unique
    datasets = [claims.short_name(name) for name in readme.comparisons()]
    assert ("omniglot" in datasets) == any("handwritten letters" in title for title in ranked)


def test_a_data_set_is_compared_once_by_its_table_of_many_losses_and_most_seeds():
    for dataset, by_notebook in readme.comparisons().items():
        for name, chosen in by_notebook.items():
            assert set(chosen.table["dataset"]) == {dataset}
            alike = [other for other in stored.stored(name) if set(other.table["dataset"]) == {dataset}]
            many = [other for other in alike if len(set(other.table["method"]) - {"untrained", "random head"}) > 2]
            assert chosen.seeds == max(other.seeds for other in many if other.profile == chosen.profile)
            assert chosen.stem in [other.stem for other in many]


def test_the_cost_is_that_of_every_data_set_that_claims_name():
    table, total = costs.table(), readme.hours().sum()
    paper = table[(table["profile"] == "paper") & (table["paper"] != "together")]
    assert total["all"] == pytest.approx(paper["hours"].sum())
    assert total["tuning"] == pytest.approx(paper["tuning_hours"].sum())
    assert f"|{total['all']:.0f}|{total['tuning']:.0f}|" in readme.cost()
    for claim_id, test in catalogue.claims().items():
        planned = set(paper.loc[paper["notebook"] == test.notebook, "dataset"])
        named = {name for name in claims.named(claim_id) if name in costs.EARLY_STOP_STEPS}
        assert not planned or named <= planned, claim_id
