"""The README answers on its first screen, in few words, with what results/ says."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import claims, comparing, judging, ledger, stored
from experiments.files import repository_root
from experiments.report import catalogue, costs, published, readme, verdicts

README = repository_root() / "README.md"
QUESTIONS = ("Which loss?", "What held?", "What did not?", "Why?", "What would it cost?")


def words(text: str) -> list[str]:
    """The words that a reader sees: no targets of links, comments, bars or marks."""
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return [word for word in re.split(r"[\s|]+", text) if re.search(r"\w", word)]


def test_each_question_is_answered_within_a_minute_of_reading_from_the_top():
    text = README.read_text(encoding="utf8")
    places = [text.index(f"**{question}**") for question in QUESTIONS]
    assert all(one < other for one, other in pairwise(places))
    assert len(words(text[: text.index("\n", places[-1])])) <= 240
    assert len(text.split()) < 1200


def test_made_links_lead_somewhere():
    links = [link for part in readme.parts().values() for link in re.findall(r"\]\(([^)# ]+)[^)]*\)", part)]
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (repository_root() / link).exists()] == []


def test_the_state_counts_all_claims_and_names_what_is_decided():
    text, here = readme.state(), verdicts.here()
    assert f"of {len(here)} claims go as claimed" in text
    decided = [claim_id for claim_id, word in here.items() if word in judging.OUTCOMES[1:]]
    assert [claim_id for claim_id in decided[: readme.SHOWN] if claim_id not in text] == []


def test_many_decided_claims_are_counted_and_the_first_are_named(monkeypatch):
    everything = dict.fromkeys(verdicts.here(), judging.AS_CLAIMED)
    monkeypatch.setattr(verdicts, "here", lambda: everything)
    text = readme.state()
    assert f"{len(everything)} of {len(everything)} claims go as claimed" in text
    assert f"[{len(everything) - readme.SHOWN} more](docs/matrix.md)" in text and "No claim is unclear." in text
    assert len(words(text)) < 180


def test_a_verdict_at_the_papers_scale_is_told_first(monkeypatch):
    lines = verdicts.lines()
    lines = lines[lines["scale"] == ledger.HERE]
    monkeypatch.setattr(verdicts, "lines", lambda: lines)
    assert readme.state().startswith("No retrieval claim is confirmed or refuted at the published scale.")
    line = lines[(lines["claim_id"] == "pfml-02") & (lines["dataset"] == "omniglot")].head(1)
    run = line.assign(scale=ledger.PAPER_SCALE, dataset="cub", role="named", decides="yes", verdict=judging.OTHER_WAY)
    monkeypatch.setattr(verdicts, "lines", lambda: pd.concat([lines, run]))
    assert readme.state().startswith("At the published scale, of the claims about retrieval: 1 the other way.")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("not shown: A vs 3, premise: every row at least 3; not tuned: 0 of at least 12", "a premise not met"),
        ("not tuned alike: trials A 0, B 16", "not tuned alike"),
        ("5 of the 10 seeds planned", "too few seeds"),
        ("1 of the 5 seeds needed", "too few seeds"),
        ("the same value in each of 10 seeds", "constant measures"),
        ("problems covers 1 to 3 of 1 to 5", "a range measured in part"),
        ("A has not learned", "nothing learned"),
        ("resnet18 is no evidence about resnet50", "another network"),
        ("depends on the reading: as “strict” the other way; read as “lax”: as claimed", "two readings"),
        ("A vs B: not told apart", "effects too close to call"),
    ],
)
def test_why_a_claim_is_open_is_told_by_its_reason(reason, cause, monkeypatch):
    lines = verdicts.lines()
    open_one = lines[lines["claim_id"] == "plm-06"].assign(verdict=judging.UNCLEAR, reason=reason)
    monkeypatch.setattr(verdicts, "lines", lambda: open_one)
    monkeypatch.setattr(verdicts, "here", lambda: {"plm-06": judging.UNCLEAR})
    assert readme.why_open() == f"Of what is unclear: {cause} (1)."


def test_rare_causes_are_counted_together(monkeypatch):
    lines = verdicts.lines()
    first = lines.drop_duplicates("claim_id").head(len(readme.OBSTACLES))
    reasons = ["not shown: ", "not tuned", "seeds planned", "the same value in each", "covers", "has not learned"]
    reasons += ["is no evidence about", "depends on the reading", "not told apart"]
    assert len(reasons) == len(readme.OBSTACLES)
    where = {"decides": "yes", "scale": ledger.HERE, "role": "named", "dataset": "cub"}
    first = first.assign(verdict=judging.UNCLEAR, reason=reasons, **where)
    monkeypatch.setattr(verdicts, "lines", lambda: first)
    monkeypatch.setattr(verdicts, "here", lambda: dict.fromkeys(first["claim_id"], judging.UNCLEAR))
    assert readme.why_open().endswith("a range measured in part (1), others (4).")


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
