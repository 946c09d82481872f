"""What holds of every loss: its contract with a batch, dtypes, derivatives of both orders, compilers, rates."""

import copy
import inspect
import itertools
import math

import pytest
import torch
from each_loss import NAMES, needs
from torch import nn

from dmlrepro import losses, vmf
from dmlrepro.losses import baselines, nivmf
from dmlrepro.losses.potential_field import CLIP_VALUE
from dmlrepro.losses.recommended import clip_gradients

C, D, B = 13, 64, 12


class Given(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss, self.proxies = loss, nn.Parameter(torch.randn(C, D))
        self.parameter_groups = loss.parameter_groups

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels, self.proxies, torch.arange(C))


def by_contract(what, **options):
    """How to make a loss: one that takes no sizes is given its proxies in the call."""
    sizes = {name: size for name, size in (("num_classes", C), ("embedding_size", D)) if name in needs(what)}
    return lambda: what(**sizes, **options) if sizes else Given(what(**options))


NARROW = {"embedding_scale": 10.0, "seed": 0}
NIVMF = NARROW | {"distance": "nivmf"}
CASES = {
    "PFML": (losses.PFML, {"proxies_per_class": 2, "delta": 0.8}),
    "PFML, mean": (losses.PFML, {"proxies_per_class": 2, "reduction": "mean"}),
    "CPML": (losses.CPML, {"proxies_per_class": 2, "delta": 0.8}),
    **{name: (losses.NivMF, {"distance": name, **NARROW}) for name in nivmf.DEFAULTS},
    "l2": (losses.NivMF, {"distance": "l2", "temperature": 100.0, **NARROW}),  # at 1 it is flat here
    "el_nivmf, released": (losses.NivMF, {"distance": "el_nivmf", "variant": "released", **NARROW}),
    "MFCont, regularised": (losses.MFCont, {"negative_margin": 0.9, "regularization": 1.0}),
    "MFCWMS, paper": (losses.MFCWMS, {"averaging": "paper", "regularization": 1.0}),
    "MFNCA": (losses.MFNCA, {"averaging": "paper"}),
    "CWMS": (losses.CWMS, {"beta": 20.0, "delta": 0.2}),
    "CWMS, paper": (losses.CWMS, {"beta": 20.0, "delta": 0.2, "averaging": "paper"}),
    "C1": (losses.CCPContrastive, {"form": "c1"}),
    "CCPContrastive": (losses.CCPContrastive, {"negative_margin": 1.5}),
    "PLM": (losses.PLM, {"num_proxies": 3, "k": 5}),
    "ContextualSimilarity": (losses.ContextualSimilarity, {"k": 4}),
    "ProxyAnchorNivMF": (losses.ProxyAnchorNivMF, NARROW),
}
CASES |= {name: (getattr(losses, name), {}) for name in NAMES if name not in (*CASES, "NivMF", "JointProxy")}
ALL = {name: by_contract(what, **options) for name, (what, options) in CASES.items()}
ALL["JointProxy"] = lambda: losses.JointProxy(losses.NivMF(C, D, "cosine"), losses.NormSoftmax(C, D), omega=0.5)
UNLABELLED = {"PLM", "ContextualSimilarity"}
LABELLED = [name for name in ALL if name not in UNLABELLED]
# pytorch-metric-learning's code within: it chooses pairs by their values, which torch.compile can follow in parts only
IN_PARTS = {"ProxyAnchor", "ProxyAnchorNivMF", "Contrastive", "XBM", "Triplet", "Margin", "MultiSimilarity", "NTXent"}
WHOLE = [name for name in ALL if name not in IN_PARTS]  # those that torch.compile takes as one graph
# Long expansions of Bessel functions, operator by operator: the slow tests have them
LONG_TO_COMPILE = ("nivmf", "el_vmf", "bhattacharyya", "kl", "el_nivmf", "el_nivmf, released")
QUICK_TO_EXPORT = ("PFML", "MFCWMS", "CWMS", "el_nivmf", "JointProxy")
LABELS = {
    "some absent": torch.arange(B) % 4,
    "some alone": torch.tensor([0, 0, 0, 3, 3, 12, 7, 0, 5, 3, 0, 1]),
    "all alone": torch.arange(B),
    "one class": torch.full((B,), 2),
}


def case(name, dtype=torch.float64):
    """A loss, the embeddings of a batch and the second argument, labels or momentum embeddings."""
    torch.manual_seed(1)
    loss = (ALL | FORMS)[name]()
    loss = loss.double() if dtype == torch.float64 else loss
    z = torch.randn(B, D, dtype=torch.float64)
    unlabelled = name.split(",")[0] in UNLABELLED
    second = z + 0.1 * torch.randn(B, D, dtype=torch.float64) if unlabelled else LABELS["some absent"]
    return loss, z.to(dtype).requires_grad_(), second.to(dtype) if unlabelled else second


def batches(name):
    """(which, embeddings, second argument): labels of every kind; without labels, all different or each twice."""
    _, z, second = case(name)
    if name not in UNLABELLED:
        return [(which, z, labels) for which, labels in LABELS.items()]
    twice = torch.arange(B) // 2
    return [("different", z, second), ("twins", z.detach()[twice].requires_grad_(), second[twice])]


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


DERIVED = sorted(set(ALL) - {"Margin"})  # it draws other triplets in every call
FORMS = {f"nivmf, {name}": by_contract(losses.NivMF, jacobian=name, **NIVMF) for name in nivmf.JACOBIANS}
FORMS["PLM, attached"] = by_contract(losses.PLM, num_proxies=3, k=5, detach_similarity=False)


@pytest.mark.parametrize("name", [*DERIVED, *FORMS])
@pytest.mark.parametrize("upstream", ["constant", "the value"])
def test_second_derivatives_are_right_whatever_the_upstream_gradient(name, upstream, fixed_draws):
    """And the first ones: changes along a direction of embeddings and weights, analytic and by differences."""
    loss, z, second = case(name)
    # the targets of PLM are constants, so that its slopes at the weights are not those of its value
    points, generator, step = [z, *(loss.parameters() if name != "PLM" else ())], torch.Generator().manual_seed(2), 1e-6
    directions = [torch.randn(point.shape, dtype=z.dtype, generator=generator) for point in points]

    def gradients(**graph):
        value = loss(z, second)
        scale = torch.ones_like(value) if upstream == "constant" else value
        return value.item(), torch.autograd.grad(value, points, scale, materialize_grads=True, **graph)

    def moved(by):
        for point, direction in zip(points, directions):
            point.data += by * direction

    value, first = gradients(create_graph=True)
    analytic = torch.autograd.grad(first, points, directions, materialize_grads=True)
    moved(step)
    above, first_above = gradients()
    moved(-2 * step)
    below, first_below = gradients()
    if upstream == "constant":
        slope = sum((gradient * direction).sum().item() for gradient, direction in zip(first, directions))
        assert slope == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7 * abs(value))
    for found, *ends in zip(analytic, first_above, first_below, strict=True):
        expected = (ends[0] - ends[1]) / (2 * step)
        assert expected.any()
        assert (found - expected).abs().max() <= 3e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["C1", "CCPContrastive", "CCPTriplet", "CCPMultiSimilarity"])
def test_second_derivatives_within_the_batch_where_a_sample_is_at_no_distance_from_itself(name):
    what, options = CASES[name]
    _, z, labels = case(name)
    loss = what(**options)
    few = (0.1 * z[:, :5]).detach().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), few)


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
    gradient = torch.func.grad(lambda at: torch.func.functional_call(loss, {}, (at, second)))(z.detach())
    assert torch.equal(gradient, expected)


def assert_same_in(batches, plain, traced, tolerance=1e-10):
    moves = False
    for which, z, second in batches:
        found = []
        for loss in (traced, plain):
            value = loss(z, second)
            slopes = torch.autograd.grad(value, [z, *loss.parameters()], materialize_grads=True)
            found.append([value, *slopes])
        assert found[1][0].isfinite()
        moves |= which == "smallest" or any(slope.any() for slope in found[1][1:])  # one image has no pairs
        for actual, expected in zip(*found, strict=True):
            assert (actual - expected).abs().max() <= tolerance * expected.abs().max().clamp_min(1e-9), which
    assert moves


COMPILED = [("aot_eager", name, name in LONG_TO_COMPILE) for name in WHOLE]
COMPILED += [("inductor", name, True) for name in ("PFML", "MFCWMS", "PLM")]


@pytest.mark.parametrize(
    ("backend", "name"),
    [pytest.param(backend, name, marks=pytest.mark.slow if slow else ()) for backend, name, slow in COMPILED],
)
def test_compiles_as_one_graph(backend, name):
    loss = case(name)[0]
    plain = copy.deepcopy(loss)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    some = batches(name) if backend == "aot_eager" else [("", *case(name)[1:])]
    assert_same_in(some, plain, compiled, 1e-10 if backend == "aot_eager" else 1e-8)


@pytest.mark.parametrize("name", ["PFML", "MFCWMS", "CCPContrastive", "C1"])
def test_one_graph_serves_batches_of_all_sizes(name):
    """More graphs than eight are an error where the whole has to be one."""
    loss, z, second = case(name)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for size in range(B, B - 10, -1):
        some = z[:size], second[:size]
        assert compiled(*some).item() == pytest.approx(loss(*some).item(), rel=1e-10)
    rows = torch.export.Dim("rows", min=2, max=1000)
    given = {"embeddings": {0: rows}, "labels": {0: rows}}
    exported = torch.export.export(loss, (z.detach(), second), dynamic_shapes=given).module()
    assert exported(z[:5], second[:5]).item() == pytest.approx(loss(z[:5], second[:5]).item(), rel=1e-10)


def test_a_compiled_el_nivmf_goes_on_with_its_random_stream_in_training_alone():
    loss, z, second = case("el_nivmf")
    plain, values = copy.deepcopy(loss), []
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for _ in range(3):
        values.append(compiled(z, second).item())
        assert values[-1] == pytest.approx(plain(z, second).item(), rel=1e-12)
    assert len(set(values)) == 3
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    with torch.no_grad():
        compiled(z, second)
    loss.eval()
    compiled(z, second)
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_TO_EXPORT else pytest.mark.slow) for name in WHOLE]
)
def test_export(name):
    """Values and gradients. EL-nivMF and joint losses are not exported: a graph would hold neither a random stream nor
    that proxies are shared."""
    loss, z, second = case(name)
    if name.startswith("el_nivmf") or name == "JointProxy":
        with pytest.raises(RuntimeError, match=r"(el_nivmf|JointProxyLoss) cannot be exported"):
            torch.export.export(loss, (z.detach(), second))
        return
    size = 6 if name == "PLM" else 1  # the smallest batch: of one image, or one more than the neighbours of a piece
    for some in (batches(name), [("smallest", z.detach()[:size].requires_grad_(), second[:size])]):
        _, z, second = some[0]
        assert_same_in(some, loss, torch.export.export(loss, (z.detach(), second)).module())


def test_class_vectors_are_proxies():
    for name, make in ALL.items():
        loss = make()
        vectors = [p for p in loss.parameters() if p.ndim > 1 and D in p.shape and min(p.shape) > 1]
        proxies = baselines.proxies_of(loss)
        assert bool(vectors) == (proxies is not None), name
        if vectors:
            assert proxies.shape[-1] == D and (name == "PLM" or proxies.shape[0] == C), name
            assert isinstance(loss, baselines.Baseline) or loss.proxies.reshape(proxies.shape).equal(proxies), name


def test_shared_proxies_stay_shared():
    loss, z, labels = case("JointProxy")
    state = copy.deepcopy(loss.state_dict()) | {"probabilistic.proxies": loss.proxies.detach().flip(0)}
    swapped = torch.func.functional_call(loss, state, (z, labels))
    for changed in (copy.deepcopy(loss), loss.to_empty(device="cpu")):
        changed.load_state_dict(state, assign=True)
        assert torch.equal(changed(z, labels), swapped) and not torch.equal(swapped, case("JointProxy")[0](z, labels))
        assert changed.deterministic.proxies is changed.proxies


@pytest.mark.parametrize("name", ALL)
def test_a_loss_made_on_the_meta_device_takes_a_state(name):
    """Sizes without memory, as for a checkpoint that is read straight to where it belongs."""
    loss, z, second = case(name)
    with torch.device("meta"):
        empty = ALL[name]()
    shown = repr(empty)
    assert "nan" not in shown
    filled = empty.double().to_empty(device="cpu")
    filled.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert torch.equal(filled(z, second), loss(z, second))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(name, dtype):
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


@pytest.mark.parametrize("name", ["JointProxy", "ProxyAnchorNivMF", "PFML"])
def test_a_loss_in_half_precision_computes_in_float32(name):
    loss, z, second = case(name, torch.float32)
    narrow = loss.to(torch.bfloat16)
    wide = copy.deepcopy(narrow).float()
    assert narrow(z, second) == wide(z, second)


def test_a_joint_loss_keeps_nothing_of_a_functional_call():
    loss, z, second = case("JointProxy")
    parts = {name: 1.0 * value for name, value in loss.named_parameters()}
    assert torch.func.functional_call(loss, parts, (z, second)) == copy.deepcopy(loss)(z, second)


@pytest.mark.parametrize("name", ["PFML", "NormSoftmax", "PLM", "MFCont, regularised", "MFCWMS, paper", "MFNCA"])
@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_class_vector_without_direction_is_named(name, value):
    loss, z, second = case(name)
    loss.proxies.data[1] = value
    with pytest.raises(ValueError, match=r"(proxies|mean_fields) have a norm of .* in row [12] and so no direction"):
        loss(z, second)


def test_a_replica_of_a_baseline_leaves_the_original_as_it_is():
    """As DataParallel makes them."""
    loss, z, second = case("ProxyAnchor", torch.float32)
    replica = copy.copy(loss)
    replica._modules = {"loss": loss.loss._replicate_for_data_parallel()}
    replica.loss.proxies = loss.loss.proxies.detach().double()
    replica(z.double(), second)
    assert loss.loss.proxies.dtype == torch.float32


PAIRS = {"Contrastive", "XBM", "Triplet", "MultiSimilarity", "Margin"}
MINED = {"Triplet", "MultiSimilarity", "Margin"}
NOTHING = {"one sample": PAIRS, "all alone": MINED, "one class": MINED}  # where no pair or triplet applies
WITH_ZERO = {name for name, (what, _) in CASES.items() if what is losses.NivMF or not needs(what)}  # it has a meaning


@pytest.mark.parametrize("which", [*LABELS, "one sample", "coincident"])
@pytest.mark.parametrize("name", LABELLED)
def test_unusual_batches_give_finite_values_and_gradients(name, which):
    loss, z, labels = case(name, torch.float32)
    z, labels = z.detach(), LABELS.get(which, labels)
    if which == "one sample":
        z, labels = z[:1], labels[:1]
    if which == "coincident":
        z = z[:1].expand_as(z).clone()
        if (proxies := baselines.proxies_of(loss)) is not None:
            proxies.data[0, 0] = z[0]
    elif name in WITH_ZERO and len(z) > 1:
        z[0] = 0
    value = loss(z.requires_grad_(), labels)
    slopes = torch.autograd.grad(value, [z, *loss.parameters()], materialize_grads=True)
    assert value.isfinite() and all(slope.isfinite().all() for slope in slopes)
    if name in NOTHING.get(which, ()):
        assert value == 0 and not any(slope.any() for slope in slopes)


@pytest.mark.parametrize("name", LABELLED)
def test_bad_batches_are_named(name):
    loss, z, y = case(name, torch.float32)
    z = z.detach()
    bad = [
        (z * math.nan, y, "embeddings contain NaN or infinity"),
        (z * 1e25, y, "embeddings are too long for torch.float32 to square"),
        (z[0], y, "embeddings must have shape"),
        (z[:, :3], y, r"(embeddings|proxies \(ref_emb\)) must have shape \(., (3|64)\)"),
        (z.int(), y, "embeddings must be floating point"),
        (z[:0], y[:0], "empty batch"),
        (z, y[:3], "labels must be integers of shape"),
        (z, y[:, None], "labels must be integers of shape"),
        (z, y - 1, "labels must be at least 0, found -1"),
        (z.numpy(), y, r"pass torch.as_tensor\(embeddings\)"),
        *((z, wrong, r"must be a torch tensor, got .*; pass torch.as_tensor\(labels\)") for wrong in (y.numpy(), None)),
        *((z, wrong, "labels must be integers, got torch") for wrong in (y.float(), y > 1)),
    ]
    if needs(CASES.get(name, CASES["PFML"])[0]):
        bad.append((z, y + C - 3, r"labels must lie in \[0, 13\), found 13"))
    if name not in WITH_ZERO:
        bad += [
            (z.index_fill(0, torch.tensor(1), 0), y, "embeddings have a norm of 0 in row 1"),
            (z * (1 - (1 - 1e-15) * torch.eye(B)[:, 2:3]), y, "embeddings have a norm of .* in row 2"),
        ]
    for embeddings, labels, message in bad:
        with pytest.raises(ValueError, match=message):
            loss(embeddings, labels)


@pytest.mark.parametrize("name", sorted(set(ALL) - WITH_ZERO - {"ProxyAnchorNivMF"}))
def test_only_the_direction_of_embeddings_and_class_vectors_counts(name):
    loss, z, second = case(name)
    expected, scale = copy.deepcopy(loss)(z, second).item(), torch.logspace(-2, 2, B, dtype=z.dtype)[:, None]
    if (proxies := baselines.proxies_of(loss)) is not None:
        proxies.data.mul_(torch.logspace(-1, 1, len(proxies), dtype=z.dtype)[:, None, None])
    spread = loss(z * scale, second).item()
    assert spread == pytest.approx(expected, rel=1e-9)


POSITIVE = {"alpha", "beta", "delta", "gamma", "la", "min_distance", "proxy_norm", "scale", "sigma", "temperature"}
NOT_NEGATIVE = {"n_alpha", "n_beta", "omega", "quality", "regularization"}
MAY_BE_ANY = {("Margin", "beta"), ("MFCWMS", "delta"), ("CWMS", "delta")}  # a distance, and cosines


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"JointProxy"}))
def test_a_size_or_an_option_out_of_its_range_is_named(name):
    what = getattr(losses, name)
    sizes = {size: number for size, number in (("num_classes", C), ("embedding_size", D)) if size in needs(what)}
    for size, value in itertools.product(sizes, (-1, 2.5, "6", True)):
        with pytest.raises(ValueError, match=rf"{size} must be a whole number from \d on, got {value!r}"):
            what(**sizes | {size: value})
    for option in inspect.signature(what).parameters.values():
        bad = {float: [math.nan, math.inf], str: ["nonsense"], int: [-1, 2.5, "6"]}.get(type(option.default), [])
        if type(option.default) is float and (name, option.name) not in MAY_BE_ANY:
            bad += [-1.0] * (option.name in POSITIVE | NOT_NEGATIVE)
            bad += [0.0] * (option.name in POSITIVE and (name, option.name) != ("PFML", "alpha"))
        for value in bad if option.name != "warmup_steps" else ():
            with pytest.raises(ValueError, match=rf"{option.name}\b.* must "):
                what(**sizes | {option.name: value})


@pytest.mark.parametrize("name", ALL)
def test_parameter_groups_have_every_parameter_once(name):
    loss = ALL[name]()
    grouped = [p for group in loss.parameter_groups(1e-3) for p in group["params"]]
    expected = (loss.loss if isinstance(loss, Given) else loss).parameters()
    assert sorted(map(id, grouped)) == sorted(map(id, expected))
    assert all(group["lr"] > 0 and group["weight_decay"] == 0 for group in loss.parameter_groups(1e-3))


def test_clipping_is_that_of_the_groups_alone():
    net, loss = nn.Linear(4, 3), losses.PFML(2, 3, 2)
    optimizer = torch.optim.Adam([{"params": net.parameters()}, *loss.parameter_groups(1e-3)], lr=1e-3)
    for parameter in (*net.parameters(), *loss.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0)
    clip_gradients(optimizer)
    assert loss.proxies.grad.unique().tolist() == pytest.approx([CLIP_VALUE])
    assert net.weight.grad.unique().tolist() == [7.0]
    mean = losses.PFML(2, 3, 2, reduction="mean").parameter_groups(1e-3)
    assert mean[0]["clip_value"] == pytest.approx(CLIP_VALUE / 12) and math.isclose(mean[0]["lr"], 0.1)
