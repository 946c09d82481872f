"""Time and memory of the mean field losses, forward and backward, on SOP's classes, and their growth with the data.

    python benchmarks/mean_field.py            all cases, about two minutes; writes results/benchmarks/mean_field.csv
    python benchmarks/mean_field.py --quick    one small case, seconds; prints, writes nothing

MFCont, MFCWMS      the product's losses
NormalizedSoftmax   pytorch-metric-learning's, the plainest classification loss
matmul              the product of the batch with all mean fields, forward and backward: what any such loss costs
dense               Eq. 10 over all C x C pairs of classes, as it is printed and as the released code computes it

The forms of a case take turns in one process, so that a busy machine slows them alike, and their seconds are medians.
Memory is the rise of the peak of a process of its own over its state before one forward and backward pass, gradients
included. MFCWMS and its dense form are compared first. The growth is of the whole data in one batch, 100 classes in 64
dimensions: exponents of seconds against samples, beside those of the pair losses. Only ratios within one run and
exponents carry over to another machine; the exit status is 1 if one of them misses its limit. One thread.
"""

import statistics
from typing import NamedTuple

import harness
import torch
from torch import Tensor

from dmlrepro.losses.mean_field import MeanFieldClassWiseMultiSimilarityLoss, MeanFieldContrastiveLoss, field_cosines
from experiments import timing
from experiments.meanfield import growth


class Case(NamedTuple):
    classes: int
    dim: int
    batch: int


CASES = {"tiny": Case(20, 16, 8), "quick": Case(1000, 64, 64), "sop": Case(11318, 512, 128)}
SIZES = {"quick": (growth.FROM, 5600), "sop": (growth.FROM, 5600, 8000)}
OURS = {"NormalizedSoftmax": "MFCont", "matmul": "MFCWMS", "dense": "MFCWMS", "Cont": "MFCont", "CWMS": "MFCWMS"}
TURNS = ("MFCont", "MFCWMS", "NormalizedSoftmax", "matmul")
MEMORY = ("MFCont", "MFCWMS", "dense")
SECONDS = {("MFCont", "NormalizedSoftmax"): 1.2, ("MFCWMS", "matmul"): 2.0}  # (form, compared with): largest ratio
MEGABYTES, DENSE = 200, 1 / 10  # of MFCWMS at SOP's size; over the dense form's
EXPONENT, APART = 1.3, 0.3  # largest of a mean field loss; least distance below its pair loss


def dense(loss: MeanFieldClassWiseMultiSimilarityLoss, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Eq. 10 over all pairs of classes, absent ones included."""
    fields, (alpha, beta, delta) = loss.mean_fields, (loss.options[name] for name in ("alpha", "beta", "delta"))
    cosines = field_cosines(embeddings, fields)
    member = (labels[:, None] == torch.arange(len(fields))).to(cosines.dtype)
    counts = member.sum(0)
    share = (member / counts.clamp_min(1)).T  # (C, B)
    positive = share @ (alpha * (delta - cosines)).exp()
    half = share @ (beta * (cosines - delta)).exp()
    pairs = (half + half.T).log1p()
    negative = (pairs.sum() - pairs.diagonal().sum()) / (2 * beta)
    return (positive.diagonal().log1p().sum() / alpha + negative) / (counts > 0).sum()


def problem(name: str, form: str):
    """(a function of embeddings and labels with parameters, embeddings, labels)."""
    case = CASES[name]
    torch.manual_seed(0)
    if form == "NormalizedSoftmax":
        from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

        loss = NormalizedSoftmaxLoss(case.classes, case.dim)
    else:
        kind = MeanFieldContrastiveLoss if form == "MFCont" else MeanFieldClassWiseMultiSimilarityLoss
        loss = kind(case.classes, case.dim)
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(case.batch, case.dim, generator=generator)
    labels = torch.randint(case.classes, (case.batch,), generator=generator)
    return loss, embeddings.requires_grad_(), labels


def step(form: str, loss, embeddings: Tensor, labels: Tensor) -> Tensor:
    """One forward and backward pass that leaves gradients everywhere; returns the loss."""
    loss.zero_grad()
    embeddings.grad = None
    if form == "matmul":
        product = embeddings @ loss.mean_fields.T
        product.backward(torch.ones_like(product))
        return product.detach()
    value = dense(loss, embeddings, labels) if form == "dense" else loss(embeddings, labels)
    value.backward()
    return value.detach()


def disagreement(name: str) -> float:
    """Relative difference of MFCWMS and its dense form: of the value and, at its worst, of the gradients."""
    results = []
    for form in ("MFCWMS", "dense"):
        loss, embeddings, labels = problem(name, form)
        results.append([step(form, loss, embeddings, labels), embeddings.grad, loss.mean_fields.grad])
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results))


def seconds(name: str, repeats: int) -> dict[str, float]:
    """Median seconds of the forms, which take turns in this process."""
    torch.set_num_threads(1)
    if (worst := disagreement("tiny")) > 1e-4:
        raise AssertionError(f"MFCWMS and its dense form differ by {worst:.1e}")
    arguments = {form: problem(name, form) for form in TURNS}
    calls = {form: lambda form=form: step(form, *arguments[form]) for form in TURNS}
    return {form: statistics.median(times) for form, times in timing.in_turn(calls, repeats, "cpu").items()}


def megabytes(name: str, form: str) -> float:
    """Rise of this process's peak memory during one pass."""
    torch.set_num_threads(1)
    step(form, *problem("tiny", form))
    arguments = problem(name, form)
    return harness.process_peak_bytes(lambda: step(form, *arguments), "cpu") / 1e6


def grown(name: str, repeats: int) -> list[list]:
    """[loss, samples, median seconds] as the data grow."""
    costs = growth.measure(SIZES[name], 100, 64, repeats)
    medians = costs.groupby(["method", "samples"], sort=False)["seconds"].median()
    return [[method, samples, value] for (method, samples), value in medians.items()]


def main(name: str, repeats: int) -> list[dict]:
    """Rows of the table."""
    shape = {"case": name, **CASES[name]._asdict()}
    rows = [
        shape | {"form": form, "metric": "seconds", "value": value}
        for form, value in harness.apart(__file__, "seconds", name, repeats).items()
    ]
    for form in MEMORY:
        value = harness.apart(__file__, "megabytes", name, form)
        rows.append(shape | {"form": form, "metric": "megabytes", "value": value})
    for form, samples, value in harness.apart(__file__, "grown", name, repeats):
        whole = {"case": f"B = {samples:,}", "classes": 100, "dim": 64, "batch": samples}
        rows.append(whole | {"form": form, "metric": "seconds", "value": value})
    return rows


def judge(rows: list[dict]) -> bool:
    """Print every ratio and exponent; whether all that have a limit keep it."""
    import pandas as pd

    table = pd.DataFrame(rows)
    grows = table["case"].str.startswith("B = ")
    value = table[~grows].set_index(["form", "metric"])["value"]
    kept = [
        harness.within(
            f"{form}: seconds over the {other}'s", value[form, "seconds"] / value[other, "seconds"], most=most
        )
        for (form, other), most in SECONDS.items()
    ]
    memory = {form: value[form, "megabytes"] for form in MEMORY}
    kept.append(harness.within("MFCWMS: megabytes", memory["MFCWMS"], most=MEGABYTES))
    kept.append(
        harness.within("MFCWMS: megabytes over the dense form's", memory["MFCWMS"] / memory["dense"], most=DENSE)
    )
    costs = table[grows].rename(columns={"form": "method", "batch": "samples", "value": "seconds"}).assign(repetition=0)
    power = growth.exponents(costs).set_index("method")["exponent"]
    for form, pair in (("MFCont", "Cont"), ("MFCWMS", "CWMS")):
        kept.append(harness.within(f"{form}: exponent of seconds against samples", power[form], most=EXPONENT))
        kept.append(harness.within(f"{pair}: exponent less that of {form}", power[pair] - power[form], least=APART))
    return all(kept)


if __name__ == "__main__":
    quick = harness.options(__doc__, {"seconds": seconds, "megabytes": megabytes, "grown": grown}).quick
    rows = main(*(("quick", 3) if quick else ("sop", 9)))
    harness.finish("mean_field", harness.with_ratios(rows, OURS), judge(rows) or quick, quick)
