"""The mean field losses against Eqs. 6 to 10 and 21 over all pairs, and what must not break them."""

import copy
from functools import partial

import pytest
import torch
from device_work import LargestTensor

from dmlrepro.losses import CWMS, MFCWMS, MFNCA, Cont, MFCont, mean_field

MARGINS = {"positive_margin": 0.05, "negative_margin": 0.6}
SHARPNESS = {"alpha": 0.7, "beta": 4.0, "delta": 0.3}


def distances(a, b):
    """1 - cos, (A, B)."""
    return 1 - (a @ b.T) / (a.norm(dim=1)[:, None] * b.norm(dim=1))


def averages(labels, classes):
    """(C, B): rows that average over the samples of a class, where there are any."""
    of_class = (labels == classes[:, None]).double()
    return of_class / of_class.sum(1, keepdim=True).clamp_min(1)


def apart(pairs):
    return pairs[~torch.eye(len(pairs), dtype=torch.bool)]


def contrastive_terms(positive_margin, negative_margin):
    return lambda d: (d - positive_margin).relu(), lambda d: (negative_margin - d).relu()


def exponentials(alpha, beta, delta):
    """delta is a cosine: the threshold of a distance is 1 - delta."""
    return lambda d: torch.exp(alpha * (d - (1 - delta))), lambda d: torch.exp(-beta * (d - (1 - delta)))


def resummed(x, labels, fields):
    """Eq. 15: two samples, each seen by the other through its mean field."""
    to_fields, between = distances(x, fields)[:, labels], distances(fields, fields)[labels][:, labels]
    return lambda phi: phi(to_fields) + phi(to_fields).T - phi(between)


def eq_6(x, labels, positive_margin, negative_margin, acting=None):
    """acting(phi): how each sample acts with each; by default themselves, which mean fields replace."""
    acting = acting or (lambda phi: phi(distances(x, x)))
    mean = averages(labels, labels.unique())
    same, other = (mean @ acting(phi) @ mean.T for phi in contrastive_terms(positive_margin, negative_margin))
    return (same.trace() + apart(other).sum()) / (2 * len(mean))


def eq_8(x, labels, fields, positive_margin, negative_margin, averaging):
    attract, repel = contrastive_terms(positive_margin, negative_margin)
    d, own = distances(x, fields), labels[:, None] == torch.arange(len(fields))
    terms = torch.where(own, attract(d), repel(d)).sum(1)
    return (terms / (own.sum(0)[labels] * len(fields) if averaging == "paper" else len(labels))).sum()


def eq_9(x, labels, alpha, beta, delta, averaging):
    attract, repel = exponentials(alpha, beta, delta)
    d, mean = distances(x, x), averages(labels, labels.unique())
    near = attract(d) if averaging == "released" else attract(d) - attract(d).diagonal().diag()
    same, other = mean @ near @ mean.T / 2, mean @ repel(d) @ mean.T
    return (same.diagonal().log1p().sum() / alpha + apart(other).log1p().sum() / (2 * beta)) / len(mean)


def eq_10(x, labels, fields, alpha, beta, delta, averaging):
    """Of a pair of classes the batch may have one only, whose half remains."""
    attract, repel = exponentials(alpha, beta, delta)
    d, mean = distances(x, fields), averages(labels, torch.arange(len(fields)))
    same, half = mean @ attract(d), mean @ repel(d)
    total = same.diagonal().log1p().sum() / alpha + apart(half + half.T).log1p().sum() / (2 * beta)
    return total / (len(fields) if averaging == "paper" else len(labels.unique()))


def eq_21(x, labels, fields, alpha, averaging):
    weight, own = torch.exp(-alpha * distances(x, fields)), labels[:, None] == torch.arange(len(fields))
    samples = -(weight[own] / weight.sum(1)).log()
    samples = samples / (own.sum(0)[labels] * len(fields) if averaging == "paper" else len(labels))
    by_class = -((weight * own).sum(0) / weight.sum(0))[labels.unique()].log()
    return samples.sum() + by_class.sum() / (len(fields) if averaging == "paper" else len(by_class))


def regularizer_8(fields, negative_margin):
    return apart((negative_margin - distances(fields, fields)).relu()).square().sum() / len(fields)


def regularizer_10(fields, beta, delta):
    return apart(torch.exp(-beta * (distances(fields, fields) - (1 - delta)))).log1p().square().sum() / len(fields)


def batch(seed, labels=(4, 1, 1, 3, 1, 4), dim=3, dtype=torch.float64):
    """Unequal classes of five; 0 and 2 are absent."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), dim, dtype=torch.float64, generator=generator).to(dtype), torch.tensor(labels)


def with_fields(loss, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 + seed)
    loss.mean_fields.data = torch.randn(loss.mean_fields.shape, dtype=torch.float64, generator=generator).to(dtype)
    return loss


# name -> (loss, its options, its equation of (x, labels, fields, averaging))
CASES = {
    "MFCont": (MFCont, MARGINS, partial(eq_8, **MARGINS)),
    "MFCont regularised": (
        MFCont,
        MARGINS | {"regularization": 0.7},
        lambda x, y, m, averaging: eq_8(x, y, m, **MARGINS, averaging=averaging) + 0.7 * regularizer_8(m, 0.6),
    ),
    "MFCWMS": (MFCWMS, SHARPNESS, partial(eq_10, **SHARPNESS)),
    "MFCWMS regularised": (
        MFCWMS,
        SHARPNESS | {"regularization": 2.0},
        lambda x, y, m, averaging: eq_10(x, y, m, **SHARPNESS, averaging=averaging) + 2 * regularizer_10(m, 4.0, 0.3),
    ),
    "MFNCA": (MFNCA, {"alpha": 3.0}, partial(eq_21, alpha=3.0)),
    "Cont": (Cont, MARGINS, lambda x, y, m, averaging: eq_6(x, y, **MARGINS)),
    "CWMS": (CWMS, SHARPNESS, lambda x, y, m, averaging: eq_9(x, y, **SHARPNESS, averaging=averaging)),
}
FIELDS = [name for name in CASES if name.startswith("MF")]


def built(name, seed=0, averaging="released", dtype=torch.float64, classes=5, dim=3):
    what, options, _ = CASES[name]
    loss = what(classes, dim, **options, **({} if name == "Cont" else {"averaging": averaging}))
    return with_fields(loss, seed, dtype) if name in FIELDS else loss


def computed(loss, x, labels):
    points = [x.detach().clone().requires_grad_(), *loss.parameters()]
    value = loss(points[0], labels)
    return value, torch.autograd.grad(value, points)


def literal(name, loss, x, labels, averaging):
    points = [tensor.detach().double().requires_grad_() for tensor in (x, *loss.parameters())]
    value = CASES[name][2](points[0], labels, points[-1], averaging=averaging)
    return value, torch.autograd.grad(value, points)


def assert_same(actual, expected, tolerance):
    assert actual[0].item() == pytest.approx(expected[0].item(), rel=tolerance)
    for gradient, wanted in zip(actual[1], expected[1]):
        assert (gradient - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("averaging", mean_field.AVERAGINGS)
def test_the_terms_of_samples_average_to_the_loss_and_a_misspelt_average_is_named(averaging):
    loss = MFCont(5, 3, averaging=averaging, regularization=0.7)
    x, y = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0, 1, 1, 4, 4])
    torch.testing.assert_close(loss.per_sample(x, y).mean(), loss(x, y))
    with pytest.raises(ValueError, match=r"averaging.*got 'Released'"):
        mean_field.mean_field_contrastive(x, y, loss.mean_fields, **MARGINS, averaging="Released")


def test_fields_of_half_precision_have_the_regulariser_of_their_values_in_single_precision():
    half = MFCWMS(50, 8, beta=20.0, delta=0.2).bfloat16()
    torch.testing.assert_close(half.regularizer(), copy.deepcopy(half).float().regularizer())


@pytest.mark.parametrize("averaging", ["released", "paper"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_equals_the_equation(name, seed, averaging, monkeypatch):
    monkeypatch.setattr(mean_field, "_BLOCK", 10)  # the regularisers take two of the five rows at a time
    x, labels = batch(seed)
    loss = built(name, seed, averaging)
    assert_same(computed(loss, x, labels), literal(name, loss, x, labels, averaging), 1e-9)
    single = built(name, seed, averaging, torch.float32)
    assert_same(computed(single, x.float(), labels), literal(name, single, x.float(), labels, averaging), 1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_eq_8_is_the_resummation_of_eq_6_less_its_unstable_terms(seed):
    """Appendix A.3; only with M_c' in the second hinge, and its sign as it is, does this hold."""
    x, labels = batch(seed, (0, 0, 0, 1, 1, 2, 2, 2))
    fields = with_fields(MFCont(3, 3), seed).mean_fields
    value = mean_field.mean_field_contrastive(x, labels, fields, **MARGINS, averaging="paper")
    resummation = eq_6(x, labels, **MARGINS, acting=resummed(x, labels, fields))
    unstable = apart(contrastive_terms(**MARGINS)[1](distances(fields, fields))).sum() / 6
    assert unstable > 0
    assert value.item() == pytest.approx((resummation + unstable).item(), rel=1e-12)


EXTREME = {
    "MFCWMS, beta 1000": lambda: MFCWMS(5, 3, beta=1000.0, regularization=1.0),
    "MFCWMS, beta 90 and delta 1": lambda: MFCWMS(5, 3, beta=90.0, delta=1.0),
    "MFCWMS, alpha 1000": lambda: MFCWMS(5, 3, alpha=1000.0, beta=1000.0, delta=-1.0),
    "CWMS, beta 1000": lambda: CWMS(5, 3, alpha=1000.0, beta=1000.0, averaging="paper"),
    "MFNCA, alpha 1000": lambda: MFNCA(5, 3, alpha=1000.0),
}


@pytest.mark.parametrize("labels", [(2, 2, 2), (1,), (4, 3, 2, 1, 0), (0, 0, 1, 1, 3, 3)])
@pytest.mark.parametrize("name", EXTREME)
def test_extreme_settings_give_finite_values_and_gradients(name, labels):
    """Of one class, of one sample, of every class once, and of samples that coincide with a mean field."""
    (x, labels), loss = batch(2, labels, dtype=torch.float32), EXTREME[name]()
    if len(x) == 6:
        x = x[:1].expand_as(x).clone()
        for fields in loss.parameters():
            fields.data[3] = x[0]
    value, gradients = computed(loss, x, labels)
    assert value.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


def test_the_regularizer_is_not_the_rounding_of_a_field_beside_itself():
    assert MFNCA(5, 3).regularizer() == 0
    fields = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    exact = mean_field.class_wise_regularizer(fields.double(), 80.0, 0.8)
    assert 0 < exact < 1e-20  # a field beside itself would add 256 to each row
    torch.testing.assert_close(mean_field.class_wise_regularizer(fields, 80.0, 0.8).double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("regularization", [0.0, 1.0])
@pytest.mark.parametrize("Loss", [MFCont, MFCWMS])
def test_no_buffer_has_all_pairs_of_classes(Loss, regularization, monkeypatch):
    classes, dim, size = 3000, 8, 20
    monkeypatch.setattr(mean_field, "_BLOCK", 100 * classes)
    loss = Loss(classes, dim, regularization=regularization)
    x = torch.randn(size, dim, requires_grad=True)
    with LargestTensor() as seen:
        loss(x, torch.arange(size) // 2).backward()
    assert 0 < seen.largest <= 4 * (100 * classes if regularization else size * classes)


def test_a_delta_that_is_no_cosine_is_named():
    with pytest.raises(ValueError, match="delta is a cosine"):
        MFCWMS(3, 4, delta=1.2)
