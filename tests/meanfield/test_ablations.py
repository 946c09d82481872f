"""Notebooks 33 to 38: what their tables have, that claims find rows, and equal starts where losses are compared."""

from types import SimpleNamespace

import torch
from planned import planned

from experiments.meanfield import ablations
from experiments.meanfield.claims import SAME_RATE
from experiments.training import runs
from experiments.training.builders import OPTIMIZERS, build_loss


def fake(spec, value):
    rows = [{"selection": "last", "step": 5, "metric": "MAP@R", "value": value}]
    return SimpleNamespace(spec=spec, dataset="glyphs", rows=rows, metric=lambda name: value)


def test_dimensions_are_compared_in_one_context():
    params, specs = planned("33", seeds=1, dims=[8, 512], methods=["untrained", "MFCont"])
    table = ablations.dim_table([fake(spec, 0.5) for spec in specs], params)
    assert set(table.loc[table["method"] == "MFCont", "dim"]) == {64}
    assert list(table.loc[table["method"] == "MFCont", "setting"]) == ["dim=8", "dim=512"]
    assert [spec.embedding_size for spec in specs if spec.loss] == [8, 512]


def test_the_best_beta_is_that_of_each_delta_and_seed():
    params, specs = planned("34", betas=[70.0, 80.0], deltas=[0.6, 0.8], seeds=2)
    score = {(80.0, 0.6): 0.3, (70.0, 0.6): 0.5, (80.0, 0.8): 0.4, (70.0, 0.8): 0.2}
    table = ablations.beta_delta_table(
        [fake(s, score[s.loss_options["beta"], s.loss_options["delta"]] if s.loss else 0.1) for s in specs], params
    )
    best = table[table["metric"] == "best_beta"].groupby("setting")["value"].agg(list)
    assert best.to_dict() == {"delta=0.6": [70.0, 70.0], "delta=0.8": [80.0, 80.0]}
    first = [fake(spec, 0.5 if spec.loss else 0.1) for spec in specs if spec.seed == 0]  # as golden replicas are
    assert (ablations.beta_delta_table(first, params)["metric"] == "best_beta").sum() == 2


def test_the_regulariser_and_the_offsets_of_finished_runs():
    params, specs = planned("37", seeds=1, epochs=1, embedding_size=8)
    wanted = (("MFCWMS", "lambda=0"), ("MFCWMS", "lambda=1"), ("ProxyAnchor", ""))
    some = [spec.replace(images_per_class=8) for spec in specs if (spec.method, spec.setting) in wanted]
    finished = runs.run_all(some, jobs=1)
    table = ablations.Regularizer.table(finished, params)
    value = table.set_index(["method", "setting", "metric"])["value"]
    start, end = (value["MFCWMS", setting, "regularizer"] for setting in ("lambda=0;epochs=0", "lambda=0"))
    assert start > 0 and end != start  # eight dimensions are few for so many fields
    assert 0 < value["MFCWMS", "lambda=0", "field_offset"] < value["ProxyAnchor", "", "field_offset"]
    assert ("MFCWMS", "lambda=1", "regularizer") not in value and ("MFCWMS", "lambda=1", "field_offset") not in value
    (run,) = [run for run in finished if run.spec.setting == "lambda=0"]
    small, _ = planned("37", "small")
    (solved,) = [one for one in ablations.regularizers_of(run, small) if one.spec.setting == "fields=solved"]
    found = {row["metric"]: row["value"] for row in solved.rows}
    assert found["field_gradient"] < 0.02 and found["MAP@R"] == run.metric("MAP@R")
    assert found["field_offset"] != value["MFCWMS", "lambda=0", "field_offset"]


def test_proxy_nca_that_is_compared_with_mfnca_starts_and_learns_as_it_does():
    """Cosines do not see the length, and Adam's step does not see that of a gradient: an eighth of both is the same."""
    _, specs = planned("38", seeds=1)
    alike = next(spec for spec in specs if spec.setting == SAME_RATE)
    ours = next(spec for spec in specs if spec.method == "MFNCA")
    own = {name: getattr(ours, name) for name in ("loss", "loss_options", "loss_lr", "method", "setting")}
    assert alike.replace(**own) == ours
    embeddings, labels = torch.randn(6, 8), torch.tensor([2, 2, 2, 2, 2, 2])  # one class: Eq. 21 has its first term
    turned = []
    for spec in (ours, alike):
        loss = build_loss(spec, 5, 8)
        (fields,) = loss.parameters()
        start = fields.detach().clone()
        (rate,) = spec.loss_lr.values()
        optimizer = OPTIMIZERS["adamw"](loss.parameters(), lr=rate, weight_decay=0, eps=1e-30)
        for _ in range(3):
            optimizer.zero_grad()
            loss(embeddings, labels).backward()
            optimizer.step()
        turned.append(torch.nn.functional.normalize(torch.stack([start, fields.detach()]), dim=2))
    torch.testing.assert_close(*turned, rtol=1e-3, atol=1e-4)
