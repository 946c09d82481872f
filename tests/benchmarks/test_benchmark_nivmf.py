"""The benchmark's three implementations compute the same thing, and its table is written."""

import harness
import pytest
import torch


@pytest.mark.parametrize("implementation", ["broadcast", "loop"])
def test_values_and_gradients_agree(benchmark, implementation):
    loss, embeddings, labels = benchmark.problem("quick", "cpu")
    gradients, values = [], []
    for name in ("product", implementation):
        values.append(benchmark.step(name, loss, embeddings, labels))
        gradients.append([p.grad.clone() for p in (embeddings, *loss.parameters())])
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    for product, other in zip(*gradients):
        torch.testing.assert_close(product, other, rtol=1e-3, atol=1e-4 * product.abs().max().item())


def test_table_and_limits(benchmark, monkeypatch):
    times = {"product": 0.11, "broadcast": 0.5, "loop": 1.0}  # misses the tenfold
    fake = {name: {"value": 2.0, "megabytes": 10.0 * s, "seconds": s} for name, s in times.items()}
    monkeypatch.setattr(harness, "apart", lambda script, kind, size, name, repeats, device: fake[name])
    rows, passed = benchmark.main(benchmark.PLAN, "cpu")
    assert not passed
    fake["product"]["seconds"] = 0.09
    assert benchmark.main(benchmark.PLAN, "cpu")[1]
    fake["product"]["megabytes"] = 1600.0
    assert not benchmark.main(benchmark.PLAN, "cpu")[1]
    assert len(rows) == 2 * len(benchmark.PLAN) and rows[1]["value"] == 0.11
    fake["loop"]["value"] = 2.001
    with pytest.raises(AssertionError, match=r"loop gives 2\.001"):
        benchmark.main(benchmark.PLAN, "cpu")


def test_a_case_is_measured_in_its_own_process(benchmark):
    result = harness.apart(benchmark.__file__, "measure", "tiny", "product", 2, "cpu")
    assert result["seconds"] > 0 and result["megabytes"] >= 0
    assert result["value"] == benchmark.step("product", *benchmark.problem("tiny", "cpu"))
