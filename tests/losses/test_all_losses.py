"""What holds of every loss: dtypes, derivatives of both orders, torch.func, torch.compile, torch.export, rates."""

import copy
import math

import pytest
import torch
from torch import nn

from dmlrepro import vmf
from dmlrepro.losses import baselines, mean_field, nivmf, unlabelled
from dmlrepro.losses.chance_constrained import ProxyContrastiveLoss, ProxyMultiSimilarityLoss, ProxyTripletLoss
from dmlrepro.losses.piecewise_linear import PiecewiseLinearManifoldLoss
from dmlrepro.losses.potential_field import CLIP_VALUE, ContrastivePotentialLoss, PotentialFieldLoss
from dmlrepro.losses.recommended import clip_gradients

C, D, B = 5, 64, 12


class Given(nn.Module):
    """A loss that is given proxies, with proxies."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.proxies = loss, nn.Parameter(torch.randn(C, D))
        self.parameter_groups = loss.parameter_groups

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels, self.proxies, torch.arange(C))


def probabilistic(distance, **options):
    return lambda: nivmf.ProbabilisticProxyLoss(C, D, distance, embedding_scale=10.0, seed=0, **options)


# Those that torch.compile takes as one graph
WHOLE = {
    "PFML": lambda: PotentialFieldLoss(C, D, 2, delta=0.8),
    "PFML, mean": lambda: PotentialFieldLoss(C, D, 2, reduction="mean"),
    "CPML": lambda: ContrastivePotentialLoss(C, D, 2, delta=0.8),
    **{distance: probabilistic(distance) for distance in nivmf.DEFAULTS},
    "el_nivmf, released": probabilistic("el_nivmf", variant="released"),
    "MFCont": lambda: mean_field.MeanFieldContrastiveLoss(C, D),
    "MFCont, regularised": lambda: mean_field.MeanFieldContrastiveLoss(C, D, 0.02, 0.9, regularization=1.0),
    "MFCWMS": lambda: mean_field.MeanFieldClassWiseMultiSimilarityLoss(C, D),
    "MFNCA": lambda: mean_field.MeanFieldNCALoss(C, D, averaging="paper"),
    "Cont": lambda: mean_field.ClassBalancedContrastiveLoss(C, D),
    "CWMS": lambda: mean_field.ClassWiseMultiSimilarityLoss(C, D, beta=20.0, delta=0.2),
    "C1": lambda: Given(ProxyContrastiveLoss("c1")),
    "C2": lambda: Given(ProxyContrastiveLoss("c2", negative_margin=1.5)),
    "Triplet-all": lambda: Given(ProxyTripletLoss()),
    "MS": lambda: Given(ProxyMultiSimilarityLoss()),
    "PLM": lambda: PiecewiseLinearManifoldLoss(D, 3, k=5),
    "ProxyNCA++": lambda: baselines.proxy_nca_pp(C, D),
    "STML-style": lambda: unlabelled.ContextualSimilarityLoss(D, k=4),
    "SoftTriple": lambda: baselines.soft_triple(C, D),
    "ArcFace": lambda: baselines.arcface(C, D),
    "CosFace": lambda: baselines.cosface(C, D),
}
# pytorch-metric-learning's code within: it chooses pairs by their values, which torch.compile can follow in parts only
IN_PARTS = {
    "ProxyAnchor": lambda: baselines.proxy_anchor(C, D),
    "ProxyAnchor+EL-nivMF": lambda: nivmf.proxy_anchor_with_nivmf(C, D, embedding_scale=10.0, seed=0),
    "Contrastive": lambda: baselines.contrastive(C, D),
    "Margin": lambda: baselines.margin(C, D),
    "MultiSimilarity": lambda: baselines.multi_similarity(C, D),
}
ALL = WHOLE | IN_PARTS
UNLABELLED = ("PLM", "STML-style")
# Long expansions of Bessel functions, operator by operator: the slow tests have them
LONG_TO_COMPILE = ("nivmf", "el_vmf", "bhattacharyya", "kl", "el_nivmf", "el_nivmf, released")


def case(name, dtype=torch.float64):
    """A loss, the embeddings of a batch and the second argument, labels or momentum embeddings."""
    torch.manual_seed(1)
    loss = ALL[name]()
    loss = loss.double() if dtype == torch.float64 else loss
    z = torch.randn(B, D, dtype=torch.float64)
    second = z + 0.1 * torch.randn(B, D, dtype=torch.float64) if name in UNLABELLED else torch.arange(B) % 4
    return loss, z.to(dtype).requires_grad_(), second.to(dtype) if name in UNLABELLED else second


def gradients(loss, z, second):
    return torch.autograd.grad(loss(z, second), [z, *loss.parameters()], allow_unused=True)


def differs(found, expected):
    """The largest difference of two lists of gradients, relative to each."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs)


@pytest.fixture
def fixed_draws(monkeypatch):
    """EL-nivMF's draws stay, in the frame of the embedding that they were made for: what its derivatives refer to."""
    kept = []

    def sample(mu, kappa, num_samples, seed, state, envelope):
        if not kept:
            pole, narrow = vmf.direction(mu.detach()), vmf._envelope(kappa.detach(), D, envelope)
            kept.append((pole, vmf._resumed(pole, *narrow, num_samples, seed, state)[:2]))
        return vmf._placed(vmf.direction(mu), vmf._envelope(kappa, D, envelope)[0], *kept[0]), state

    monkeypatch.setattr(nivmf, "resumed_sample", sample)


def directional(loss, z, second, upstream):
    """The change of the gradient by z along a direction: analytic, and by differences; upstream scales the gradient."""
    direction = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(2))

    def gradient(at, **graph):
        value = loss(at, second)
        return torch.autograd.grad(value, at, upstream(value), **graph)[0]

    first = gradient(z, create_graph=True)
    found = torch.autograd.grad(first, z, direction)[0]
    step = 1e-6
    ends = [gradient((z + sign * step * direction).detach().requires_grad_()) for sign in (1, -1)]
    return found, (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"Margin"}))  # Margin draws other triplets in every call
@pytest.mark.parametrize("upstream", ["constant", "the value"])
def test_second_derivatives_are_right_whatever_the_upstream_gradient(name, upstream, fixed_draws):
    loss, z, second = case(name)
    scale = {"constant": torch.ones_like, "the value": lambda value: value}[upstream]
    found, expected = directional(loss, z, second, scale)
    assert expected.abs().max() > 0
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["PFML", "CPML", "el_nivmf"])
def test_gradgradcheck(name, fixed_draws):
    loss, z, second = case(name)
    few = z[:3, :3].detach().requires_grad_()

    def value(part):
        return loss(torch.cat([torch.cat([part, z[:3, 3:].detach()], 1), z[3:].detach()]), second)

    assert torch.autograd.gradcheck(value, few) and torch.autograd.gradgradcheck(value, few)


def test_a_third_derivative_of_pfml_is_an_error():
    loss, z, second = case("PFML")
    (first,) = torch.autograd.grad(loss(z, second), z, create_graph=True)
    (again,) = torch.autograd.grad(first.square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="twice, not three times"):
        torch.autograd.grad(again.sum(), z)


@pytest.mark.parametrize("name", WHOLE)
def test_torch_func_grad(name):
    loss, z, second = case(name)
    expected = torch.autograd.grad(copy.deepcopy(loss)(z, second), z)[0]
    found = torch.func.grad(lambda at: torch.func.functional_call(loss, {}, (at, second)))(z.detach())
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG_TO_COMPILE else ()) for name in WHOLE]
)
def test_compiles_as_one_graph(name):
    loss, z, second = case(name)
    expected = gradients(copy.deepcopy(loss), z, second)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    value = compiled(z, second)
    found = torch.autograd.grad(value, [z, *loss.parameters()], allow_unused=True)
    assert differs(found, expected) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PARTS)
def test_what_calls_the_library_compiles_in_parts(name):
    loss, z, second = case(name)
    expected = gradients(copy.deepcopy(loss), z, second)
    torch.compiler.reset()
    assert differs(gradients(torch.compile(loss, backend="eager"), z, second), expected) < 1e-10


def test_a_compiled_el_nivmf_goes_on_with_its_random_stream():
    loss, z, second = case("el_nivmf")
    plain, values = copy.deepcopy(loss), []
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for _ in range(3):
        values.append(compiled(z, second).item())
        assert values[-1] == pytest.approx(plain(z, second).item(), rel=1e-12)
    assert len(set(values)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PFML", "MFCWMS", "PLM"])
def test_compiles_with_inductor(name):
    loss, z, second = case(name)
    expected = gradients(loss, z, second)
    torch.compiler.reset()
    assert differs(gradients(torch.compile(loss, fullgraph=True), z, second), expected) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_export(name):
    """EL-nivMF alone is not exported: a graph would not hold its random stream."""
    loss, z, second = case(name)
    z = z.detach()
    if name.startswith("el_nivmf"):
        with pytest.raises(RuntimeError, match="el_nivmf cannot be exported"):
            torch.export.export(loss, (z, second))
        return
    assert torch.export.export(loss, (z, second)).module()(z, second).item() == pytest.approx(loss(z, second).item())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(name, dtype):
    """Half precision computes in float32, within autocast and without; float64 stays."""
    loss, z, second = case(name, torch.float32)
    narrow = z.detach().to(dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = copy.deepcopy(loss)(narrow.detach().to(wide), second)
    again = copy.deepcopy(loss)
    value = loss(narrow, second)
    assert value.dtype == wide and value == expected and value.isfinite()
    gradient = torch.autograd.grad(value, narrow)[0]
    assert gradient.dtype == dtype and gradient.isfinite().all() and gradient.abs().max() > 0
    if dtype != torch.float64:
        with torch.autocast("cpu", dtype=dtype):
            assert again(narrow, second) == expected


def test_pfml_trains_in_float16_with_a_grad_scaler():
    """The mean from the first step on; the sum once the scaler has gone down."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 16), torch.arange(40) % 8
    for reduction, finite_from in (("mean", 0), ("sum", 30)):
        net, loss = nn.Linear(16, 32), PotentialFieldLoss(8, 32, 3, delta=0.5, reduction=reduction)
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.Adam([{"params": net.parameters()}, *loss.parameter_groups(1e-3)], lr=1e-3)
        values = []
        for step in range(finite_from + 20):
            with torch.autocast("cpu", dtype=torch.float16):
                values.append(loss(net(x), y))
            assert values[-1].isfinite()
            optimizer.zero_grad()
            scaler.scale(values[-1]).backward()
            scaler.unscale_(optimizer)
            if step >= finite_from:
                assert all(p.grad.isfinite().all() for p in (*net.parameters(), *loss.parameters()))
            clip_gradients(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert values[-1] < values[0]


@pytest.mark.parametrize("name", ALL)
def test_parameter_groups_have_every_parameter_once(name):
    loss = ALL[name]()
    found = [p for group in loss.parameter_groups(1e-3) for p in group["params"]]
    expected = [
        p for p in loss.parameters() if p is not getattr(loss if isinstance(loss, Given) else None, "proxies", 0)
    ]
    assert sorted(map(id, found)) == sorted(map(id, expected))
    assert all(group["lr"] > 0 and group["weight_decay"] == 0 for group in loss.parameter_groups(1e-3))


def test_clipping_is_that_of_the_groups_alone():
    net, loss = nn.Linear(4, 3), PotentialFieldLoss(2, 3, 2)
    optimizer = torch.optim.Adam([{"params": net.parameters()}, *loss.parameter_groups(1e-3)], lr=1e-3)
    for parameter in (*net.parameters(), *loss.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0)
    clip_gradients(optimizer)
    assert loss.proxies.grad.unique().tolist() == pytest.approx([CLIP_VALUE])
    assert net.weight.grad.unique().tolist() == [7.0]
    mean = PotentialFieldLoss(2, 3, 2, reduction="mean").parameter_groups(1e-3)
    assert mean[0]["clip_value"] == pytest.approx(CLIP_VALUE / 12) and math.isclose(mean[0]["lr"], 0.1)
