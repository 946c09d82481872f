"""Time and memory of EL-nivMF, forward and backward, against the two obvious ways to write it.

    python benchmarks/nivmf.py            all sizes, a few minutes; writes results/benchmarks/nivmf.csv
    python benchmarks/nivmf.py --quick    one small size, seconds; prints, writes nothing

product     `ProbabilisticProxyLoss`: two float64 matrix products for all samples and proxies
broadcast   the same in float32 on an (S B, C, D) tensor, cosine_similarity along D, the released code's way
loop        Algorithm 1 to the letter in float32: one image and one proxy at a time

Each runs in a process of its own on one thread. All draw the same samples and are given the proxies' normalisers, so
only the likelihoods differ; that the losses agree is checked. Seconds are of CPU time (on a GPU, of the clock). Memory
is how far the first pass raises the peak of the process (on a GPU, of the allocator) above its state before, gradients
included, after a warm-up on a tiny problem. Only the ratios within one run carry over to another machine; the exit
status is 1 if one of them misses its limit.
"""

import math
import statistics

import harness
import torch
import torch.nn.functional as F

from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.vmf import direction, log_normalizer, sample
from experiments import timing

SIZES = {  # images, classes, embedding, samples
    "tiny": (2, 3, 4, 2),
    "quick": (8, 60, 32, 3),
    "32 x 2000": (32, 2000, 128, 5),
    "sop": (112, 11318, 512, 5),
}
PLAN = (("32 x 2000", "product", 9), ("32 x 2000", "broadcast", 5), ("32 x 2000", "loop", 1), ("sop", "product", 3))
QUICK_PLAN = tuple(("quick", implementation, 3) for implementation in ("product", "broadcast", "loop"))
LIMITS = {  # (size, metric, compared with): largest ratio
    ("32 x 2000", "seconds", "loop"): 1 / 10,
    ("32 x 2000", "megabytes", "broadcast"): 1 / 4,
}
SOP_MEGABYTES = 1500


def log_scale(loss: ProbabilisticProxyLoss) -> torch.Tensor:
    """log C_M(||K mu||) D(K) and ||K mu|| for every proxy: all of Eq. 4 but the angle."""
    k = loss.log_concentrations.exp()
    peak = (k * direction(loss.proxies)).norm(dim=1)
    return log_normalizer(peak, loss.proxies.shape[1]) + k.log().sum(1) - peak.log(), peak


def draw(loss: ProbabilisticProxyLoss, embeddings: torch.Tensor) -> torch.Tensor:
    z, generator = embeddings.double(), torch.Generator(embeddings.device).manual_seed(loss.seed)
    return sample(direction(z), z.norm(dim=1), loss.num_samples, generator).to(embeddings.dtype)


def product(loss, embeddings, labels):
    loss.hold(*map(torch.zeros_like, loss.held()))  # the same samples at every call
    return loss(embeddings, labels)


def broadcast(loss, embeddings, labels):
    scale, peak = log_scale(loss)
    k = loss.log_concentrations.exp()
    points = draw(loss, embeddings)
    cosine = F.cosine_similarity(points[:, :, None] * k, k * direction(loss.proxies), dim=-1)  # (S, B, C)
    t = loss.log_temperature.exp()
    return F.cross_entropy(((scale + peak * cosine) / t).logsumexp(0), labels)


def loop(loss, embeddings, labels):
    scale, peak = log_scale(loss)
    k, mu = loss.log_concentrations.exp(), direction(loss.proxies)
    points = draw(loss, embeddings).unbind(1)  # views unbound once: indexing in the loop would make backward far slower
    proxies = list(zip(k.unbind(), mu.unbind(), scale.unbind(), peak.unbind()))
    t = loss.log_temperature.exp()
    logits = []
    for samples in points:  # (S, D) of one image
        for concentrations, mode, constant, height in proxies:
            cosine = F.cosine_similarity(samples * concentrations, concentrations * mode, dim=-1)
            logits.append(((constant + height * cosine) / t).logsumexp(0))
    return F.cross_entropy(torch.stack(logits).view(len(labels), -1), labels)


IMPLEMENTATIONS = {"product": product, "broadcast": broadcast, "loop": loop}


def problem(size: str, device: str):
    batch, classes, dim, samples = SIZES[size]
    torch.manual_seed(0)
    options = {"concentration": 10.0, "temperature": 0.5, "num_samples": samples, "embedding_scale": 1.0}
    loss = ProbabilisticProxyLoss(classes, dim, **options).to(device)
    generator = torch.Generator().manual_seed(1)
    embeddings = 3 * torch.randn(batch, dim, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    return loss, embeddings.to(device).requires_grad_(), labels.to(device)


def step(implementation: str, loss, embeddings, labels) -> float:
    """The loss, after a forward and a backward pass that leave gradients everywhere."""
    loss.zero_grad()
    embeddings.grad = None
    value = IMPLEMENTATIONS[implementation](loss, embeddings, labels)
    value.backward()
    return value.item()


def measure(size: str, implementation: str, repeats: int, device: str) -> dict:
    """In this process: value, megabytes of the first of so many passes, median seconds of the others (or of one)."""
    torch.set_num_threads(1)
    step(implementation, *problem("tiny", device))
    arguments = problem(size, device)
    values, seconds = [], []

    def timed() -> None:
        seconds.append(timing.seconds(lambda: values.append(step(implementation, *arguments)), device))

    megabytes = harness.process_peak_bytes(timed, device) / 1e6
    for _ in range(repeats - 1):
        timed()
    return {"value": values[-1], "megabytes": megabytes, "seconds": statistics.median(seconds[1:] or seconds)}


def main(plan, device: str) -> tuple[list[dict], bool]:
    """Rows of the table, and whether every ratio met its limit."""
    results = {case[:2]: harness.apart(__file__, "measure", *case, device) for case in plan}
    for (size, implementation), result in results.items():
        reference = results[size, "product"]["value"]
        if not math.isclose(result["value"], reference, rel_tol=1e-4):
            raise AssertionError(f"{implementation} gives {result['value']} at {size}, the product {reference}")
    rows, compared = [], {}
    for (size, implementation), result in results.items():
        case = {"case": size, **dict(zip(("batch", "classes", "dim", "samples"), SIZES[size]))}
        for metric in ("megabytes", "seconds"):
            value = result[metric]
            rows.append(case | {"form": implementation, "device": device, "metric": metric, "value": value})
            compared.setdefault((size, metric), {})[implementation] = value
    passed = harness.ratios_within([(*case, values) for case, values in compared.items()], LIMITS)
    if ("sop", "product") in results:
        passed &= harness.within("sop: megabytes", results["sop", "product"]["megabytes"], most=SOP_MEGABYTES)
        needed = 2 * math.prod(SIZES["sop"]) * 4 / 1e6  # the two factors of its cosine, float32
        print(f"sop: the broadcast would need {needed:.0f} megabytes")
    return rows, passed


if __name__ == "__main__":
    options = harness.options(__doc__, {"measure": measure}, device="cpu")
    rows, passed = main(QUICK_PLAN if options.quick else PLAN, options.device)
    for row in rows:
        print(f"{row['case']:>6} {row['form']:>10} {row['metric']:>10} {row['value']:12.4g}")
    harness.finish("nivmf", harness.with_ratios(rows), passed, options.quick)
