"""Tables of results/ and their words: every number of a sentence is recomputed here from the rows."""

import pandas as pd
from made_for_claims import rows

from experiments.analysis import results, saving, stored
from experiments.analysis.claims import ClaimTest, higher
from experiments.analysis.saving import seal
from experiments.analysis.tables import START

VALUES = {  # (method, setting) -> R@1 by seed
    ("A", ""): [70.0, 71.0, 72.0, 73.0, 74.0],
    ("B", ""): [60.0, 62.0, 64.0, 66.0, 68.0],
    ("A", "alpha=1"): [50.0, 50.0, 50.0, 50.0, 50.0],
    ("A", "alpha=10"): [80.0, 80.0, 80.0, 80.0, 80.0],
}


def table(seeds=5, profile="small", **changes):
    where = {"paper": "p", "experiment": "99_some", "profile": profile, "dataset": "birds", "protocol": ""} | changes
    cells = (rows(method, values[:seeds], setting, **where) for (method, setting), values in VALUES.items())
    return results.frame(row for cell in cells for row in cell)


def write(root, frame, stem="99_some", **parameters):
    path = root / frame["profile"].iloc[0] / f"{stem}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(saving.to_csv(frame), encoding="utf8")
    made = [{"device": "CPU", "rounding": rounding} for rounding in parameters.pop("roundings", "a")]
    seal(path, {"parameters": {"steps": 0, "epochs": 4} | parameters, "device": "CPU", "runs": made})


def test_tables_are_found_with_their_label_and_those_that_carry_more_come_first(tmp_path):
    write(tmp_path, table(2, "quick"), epochs=0, steps=1)
    write(tmp_path, table(1), "99_some--dataset=birds,lr=0.1,seeds=1")
    write(tmp_path, table(5))
    write(tmp_path, table(), "99_some_other")
    assert [saved.heading for saved in stored.stored("99_some", tmp_path)] == [
        "birds, conv4, 4 epochs, 5 seeds (small)",
        "birds, conv4, 4 epochs, 1 seed, lr=0.1 (small, a direction only)",
        "birds, conv4, 1 step, 2 seeds (quick, a direction only)",
    ]


def test_a_table_of_runs_that_round_differently_is_mixed(tmp_path):
    write(tmp_path, table(), roundings="ab")
    write(tmp_path, table(), "99_some--lr=0.1", roundings="aa")
    assert {saved.stem: saved.mixed for saved in stored.stored("99_some", tmp_path)} == {
        "99_some": True,
        "99_some--lr=0.1": False,
    }


def test_a_table_is_judged_by_the_claims_of_its_notebook_that_it_has_rows_for(tmp_path):
    begun = table().query("method == 'A'").assign(method=START, value=1.0)
    write(tmp_path, pd.concat([table(), begun]), search_trials=24)
    (saved,) = stored.stored("99_some", tmp_path)
    parts = {"p-01": ("A", "B"), "p-02": ("B", "A"), "p-03": ("absent", "A"), "p-04": ("A", "B")}
    tests = {name: ClaimTest(name, "99_some", (higher(*sides),), "") for name, sides in parts.items()}
    tests["p-04"] = ClaimTest("p-04", "98_other", tests["p-04"].parts, "")
    verdicts = saved.judged(tests).verdicts
    assert list(verdicts["claim_id"]) == ["p-01", "p-02"]
    assert saved.trials == {"A": 24, "B": 24, START: 24} and set(verdicts["tuned"]) == {"yes"}
