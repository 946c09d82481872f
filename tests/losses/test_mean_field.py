"""The mean field losses against Eqs. 6 to 10 and 21 written out per pair, and what must not break them."""

import math
from functools import partial

import pytest
import torch
from device_work import LargestTensor

from dmlrepro.losses import mean_field
from dmlrepro.losses.mean_field import (
    ClassBalancedContrastiveLoss,
    ClassWiseMultiSimilarityLoss,
    MeanFieldClassWiseMultiSimilarityLoss,
    MeanFieldContrastiveLoss,
    MeanFieldNCALoss,
)

MARGINS = {"positive_margin": 0.05, "negative_margin": 0.6}
SHARPNESS = {"alpha": 0.7, "beta": 4.0, "delta": 0.3}


def distance(a, b):
    """1 - cos."""
    return 1 - (a @ b) / (a.norm() * b.norm())


def hinge(x):
    return x if x > 0 else 0 * x


def members(labels):
    """{class: places of its samples} of the classes that have any."""
    return {c: [i for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))}


def contrastive_terms(positive_margin, negative_margin):
    return lambda d: hinge(d - positive_margin), lambda d: hinge(negative_margin - d)


def exponentials(alpha, beta, delta):
    """delta is a cosine: the threshold of a distance is 1 - delta."""
    return lambda d: torch.exp(alpha * (d - (1 - delta))), lambda d: torch.exp(-beta * (d - (1 - delta)))


def pair(x, i, j):
    """Two samples as they are; what the mean field approximation replaces."""
    return lambda phi: phi(distance(x[i], x[j]))


def resummed(x, i, j, a, b):
    """Eq. 15: two samples, each seen by the other through its mean field."""
    return lambda phi: phi(distance(x[i], b)) + phi(distance(a, x[j])) - phi(distance(a, b))


def eq_6(x, labels, positive_margin, negative_margin, between=None):
    """between(i, j, c, k): how a sample of class c acts with one of class k; `pair` by default."""
    between = between or (lambda i, j, c, k: pair(x, i, j))
    attract, repel = contrastive_terms(positive_margin, negative_margin)
    sets, total = members(labels), 0
    for c, own in sets.items():
        total += sum(between(i, j, c, c)(attract) for i in own for j in own) / len(own) ** 2
        for k, others in sets.items():
            if c != k:
                total += sum(between(i, j, c, k)(repel) for i in own for j in others) / (len(own) * len(others))
    return total / (2 * len(sets))


def eq_8(x, labels, fields, positive_margin, negative_margin, averaging):
    attract, repel = contrastive_terms(positive_margin, negative_margin)
    sets, total = members(labels), 0
    for c, own in sets.items():
        for i in own:
            term = attract(distance(x[i], fields[c]))
            term = term + sum(repel(distance(x[i], fields[k])) for k in range(len(fields)) if k != c)
            total += term / (len(own) * len(fields) if averaging == "paper" else len(labels))
    return total


def eq_9(x, labels, alpha, beta, delta, averaging):
    attract, repel = exponentials(alpha, beta, delta)
    sets, total = members(labels), 0
    for c, own in sets.items():
        pairs = [(i, j) for i in own for j in own if i != j or averaging == "released"]
        mean = sum(attract(distance(x[i], x[j])) for i, j in pairs) / (2 * len(own) ** 2)
        total += torch.log(torch.as_tensor(1 + mean)) / alpha
        for k, others in sets.items():
            if c != k:
                mean = sum(repel(distance(x[i], x[j])) for i in own for j in others) / (len(own) * len(others))
                total += torch.log(1 + mean) / (2 * beta)
    return total / len(sets)


def eq_10(x, labels, fields, alpha, beta, delta, averaging):
    attract, repel = exponentials(alpha, beta, delta)
    sets, total = members(labels), 0

    def half(c, k):
        """The mean over the samples of a class, if the batch has any, against the mean field of another."""
        own = sets.get(c, [])
        return sum(repel(distance(x[i], fields[k])) for i in own) / max(len(own), 1)

    for c in range(len(fields)):
        own = sets.get(c, [])
        if own:
            total += torch.log(1 + sum(attract(distance(x[i], fields[c])) for i in own) / len(own)) / alpha
        for k in range(len(fields)):
            if c != k:
                total += torch.log(torch.as_tensor(1.0 + half(c, k) + half(k, c))) / (2 * beta)
    return total / (len(fields) if averaging == "paper" else len(sets))


def eq_21(x, labels, fields, alpha, averaging):
    sets, samples, by_class = members(labels), 0, 0
    weight = lambda a, b: torch.exp(-alpha * distance(a, b))  # noqa: E731
    for c, own in sets.items():
        for i in own:
            share = weight(x[i], fields[c]) / sum(weight(x[i], field) for field in fields)
            samples -= share.log() / (len(own) * len(fields) if averaging == "paper" else len(labels))
        positive = sum(weight(fields[c], x[j]) for j in own)
        negative = sum(weight(fields[c], x[k]) for k in range(len(labels)) if k not in own)
        by_class -= torch.log(positive / (positive + negative))
    return samples + by_class / (len(fields) if averaging == "paper" else len(sets))


def regularizer_8(fields, negative_margin):
    pairs = [(a, b) for i, a in enumerate(fields) for j, b in enumerate(fields) if i != j]
    return sum(hinge(negative_margin - distance(a, b)) ** 2 for a, b in pairs) / len(fields)


def regularizer_10(fields, beta, delta):
    pairs = [(a, b) for i, a in enumerate(fields) for j, b in enumerate(fields) if i != j]
    return sum(torch.log(1 + torch.exp(-beta * (distance(a, b) - (1 - delta)))) ** 2 for a, b in pairs) / len(fields)


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
    "MFCont": (MeanFieldContrastiveLoss, MARGINS, partial(eq_8, **MARGINS)),
    "MFCont regularised": (
        *(MeanFieldContrastiveLoss, MARGINS | {"regularization": 0.7}),
        lambda x, y, m, averaging: eq_8(x, y, m, **MARGINS, averaging=averaging) + 0.7 * regularizer_8(m, 0.6),
    ),
    "MFCWMS": (MeanFieldClassWiseMultiSimilarityLoss, SHARPNESS, partial(eq_10, **SHARPNESS)),
    "MFCWMS regularised": (
        *(MeanFieldClassWiseMultiSimilarityLoss, SHARPNESS | {"regularization": 2.0}),
        lambda x, y, m, averaging: eq_10(x, y, m, **SHARPNESS, averaging=averaging) + 2 * regularizer_10(m, 4.0, 0.3),
    ),
    "MFNCA": (MeanFieldNCALoss, {"alpha": 3.0}, partial(eq_21, alpha=3.0)),
    "Cont": (ClassBalancedContrastiveLoss, MARGINS, lambda x, y, m, averaging: eq_6(x, y, **MARGINS)),
    "CWMS": (
        *(ClassWiseMultiSimilarityLoss, SHARPNESS),
        lambda x, y, m, averaging: eq_9(x, y, **SHARPNESS, averaging=averaging),
    ),
}
FIELDS = [name for name in CASES if name.startswith("MF")]


def built(name, seed=0, averaging="released", dtype=torch.float64, classes=5, dim=3):
    what, options, _ = CASES[name]
    loss = what(classes, dim, **options, **({} if name == "Cont" else {"averaging": averaging}))
    return with_fields(loss, seed, dtype) if name in FIELDS else loss


def computed(loss, x, labels):
    """Value, and gradients of embeddings and mean fields."""
    points = [x.detach().clone().requires_grad_(), *loss.parameters()]
    value = loss(points[0], labels)
    return value, torch.autograd.grad(value, points)


def literal(name, loss, x, labels, averaging):
    points = [tensor.detach().double().requires_grad_() for tensor in (x, *loss.parameters())]
    value = CASES[name][2](points[0], labels.tolist(), points[-1], averaging=averaging)
    return value, torch.autograd.grad(value, points)


def assert_same(actual, expected, tolerance):
    assert actual[0].item() == pytest.approx(expected[0].item(), rel=tolerance)
    for gradient, wanted in zip(actual[1], expected[1]):
        assert (gradient - wanted).abs().max() <= tolerance * wanted.abs().max()


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
    fields = with_fields(MeanFieldContrastiveLoss(3, 3), seed).mean_fields
    value = mean_field.mean_field_contrastive(x, labels, fields, **MARGINS, averaging="paper")
    _, repel = contrastive_terms(**MARGINS)
    between = lambda i, j, c, k: resummed(x, i, j, fields[c], fields[k])  # noqa: E731
    resummation = eq_6(x, labels.tolist(), **MARGINS, between=between)
    unstable = sum(repel(distance(fields[c], fields[k])) for c in range(3) for k in range(3) if c != k) / 6
    assert unstable > 0
    assert value.item() == pytest.approx((resummation + unstable).item(), rel=1e-12)


EXTREME = {
    "MFCWMS, beta 1000": lambda: MeanFieldClassWiseMultiSimilarityLoss(5, 3, beta=1000.0, regularization=1.0),
    "MFCWMS, beta 90 and delta 1": lambda: MeanFieldClassWiseMultiSimilarityLoss(5, 3, beta=90.0, delta=1.0),
    "MFCWMS, alpha 1000": lambda: MeanFieldClassWiseMultiSimilarityLoss(5, 3, alpha=1000.0, beta=1000.0, delta=-1.0),
    "CWMS, beta 1000": lambda: ClassWiseMultiSimilarityLoss(5, 3, alpha=1000.0, beta=1000.0, averaging="paper"),
    "MFNCA, alpha 1000": lambda: MeanFieldNCALoss(5, 3, alpha=1000.0),
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
    assert MeanFieldNCALoss(5, 3).regularizer() == 0
    fields = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    exact = mean_field.class_wise_regularizer(
        fields.double(), 80.0, 0.8
    )  # a field beside itself would add 256 to each row
    assert 0 < exact < 1e-20
    torch.testing.assert_close(mean_field.class_wise_regularizer(fields, 80.0, 0.8).double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("regularization", [0.0, 1.0])
@pytest.mark.parametrize("Loss", [MeanFieldContrastiveLoss, MeanFieldClassWiseMultiSimilarityLoss])
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
        MeanFieldClassWiseMultiSimilarityLoss(3, 4, delta=1.2)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("wrong", [0.0, math.nan, math.inf])
def test_a_mean_field_without_a_direction_is_named(name, wrong):
    loss = built(name, dtype=torch.float32)
    loss.mean_fields.data[3] = wrong
    with pytest.raises(ValueError, match=r"mean_fields have a norm of .* in row 3"):
        loss(torch.randn(2, 3), torch.tensor([0, 1]))
