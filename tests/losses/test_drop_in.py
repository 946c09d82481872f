"""Every loss is called as pytorch-metric-learning's are, says what it has no meaning for, prints and loads."""

import copy
import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners

from dmlrepro.losses import baselines, chance_constrained, mean_field, nivmf, unlabelled
from dmlrepro.losses.piecewise_linear import PiecewiseLinearManifoldLoss
from dmlrepro.losses.potential_field import ContrastivePotentialLoss, PotentialFieldLoss

C, D = 4, 6


def joint(c, d):
    return nivmf.JointProxyLoss(nivmf.ProbabilisticProxyLoss(c, d), baselines.proxy_anchor(c, d).loss, omega=0.3)


WHOLE = {  # what takes the whole batch
    "pfml": PotentialFieldLoss,
    "cpml": ContrastivePotentialLoss,
    "nivmf": nivmf.ProbabilisticProxyLoss,
    "joint": joint,
    "mfcont": mean_field.MeanFieldContrastiveLoss,
    "mfcwms": mean_field.MeanFieldClassWiseMultiSimilarityLoss,
    "mfnca": mean_field.MeanFieldNCALoss,
    "cont": mean_field.ClassBalancedContrastiveLoss,
    "cwms": mean_field.ClassWiseMultiSimilarityLoss,
    "softmax": baselines.normalized_softmax,
    "xbm": baselines.cross_batch_memory,
    "nt_xent": unlabelled.nt_xent,
}
PAIRS = {  # what takes mined pairs and past embeddings
    "c2": lambda c, d: chance_constrained.ProxyContrastiveLoss(),
    "c1": lambda c, d: chance_constrained.ProxyContrastiveLoss("c1"),
    "triplet": lambda c, d: chance_constrained.ProxyTripletLoss(),
    "ms": lambda c, d: chance_constrained.ProxyMultiSimilarityLoss(),
    "contrastive": baselines.contrastive,
    "multi_similarity": baselines.multi_similarity,
    "margin": baselines.margin,
}
UNLABELLED = {
    "plm": lambda c, d: PiecewiseLinearManifoldLoss(d, 5),
    "contextual": lambda c, d: unlabelled.ContextualSimilarityLoss(d),
}
LABELLED = WHOLE | PAIRS


def built(name):
    torch.manual_seed(0)
    return (LABELLED | UNLABELLED)[name](C, D)


def batch(seed=0, size=12):
    return torch.randn(size, D, generator=torch.Generator().manual_seed(seed)), torch.arange(size) % C


@pytest.mark.parametrize("name", LABELLED)
def test_the_call_of_pytorch_metric_learning_is_understood(name):
    x, y = batch()
    expected = built(name)(x, y)
    assert expected.isfinite()
    assert built(name)(x, y, None, None, None) == expected
    named = built(name)(embeddings=x, labels=y, indices_tuple=None, ref_emb=None, ref_labels=None)
    assert named == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_every_integer_dtype_are_taken(name, dtype):
    x, y = batch()
    assert built(name)(x, y.to(dtype)) == built(name)(x, y)


@pytest.mark.parametrize("name", LABELLED)
def test_what_is_no_tensor_of_integers_is_told_what_to_pass(name):
    x, y = batch()
    for labels in (y.tolist(), y.numpy(), None):
        with pytest.raises(ValueError, match=r"labels must be a torch tensor, got .*; pass torch.as_tensor\(labels\)"):
            built(name)(x, labels)
    with pytest.raises(ValueError, match=r"pass torch.as_tensor\(embeddings\)"):
        built(name)(x.numpy(), y)
    for labels in (y.float(), y > 1):
        with pytest.raises(ValueError, match="labels must be integers, got torch"):
            built(name)(x, labels)


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_loss_has_no_meaning_for_is_named(name):
    x, y = batch()
    mined = miners.MultiSimilarityMiner()(x, y)
    loss = built(name)
    for argument, value in (("indices_tuple", mined), ("ref_emb", x), ("ref_labels", y)):
        with pytest.raises(ValueError, match=rf"{argument} must be None, got a (tuple|Tensor): {type(loss).__name__} "):
            loss(x, y, **{argument: value})


@pytest.mark.parametrize("name", UNLABELLED)
def test_a_loss_without_labels_takes_the_other_embeddings_in_either_place(name):
    x, y = batch()
    loss, other = built(name), x + 0.1 * batch(1)[0]
    assert loss(x, other) == loss(x, ref_emb=other) == loss(x, None, None, other, None)
    for arguments, name in (((x.numpy(), other), "embeddings"), ((x, other.tolist()), "momentum_embeddings")):
        with pytest.raises(ValueError, match=rf"^{name} must be a torch tensor.*pass torch.as_tensor\({name}\)"):
            loss(*arguments)
    for arguments in ((x, y), (x, y, None, other)):
        with pytest.raises(ValueError, match=r"labels must be None.*learns without labels"):
            loss(*arguments)
    for arguments in ((x,), (x, other, None, other)):
        with pytest.raises(ValueError, match="momentum_embeddings are needed once"):
            loss(*arguments)
    with pytest.raises(ValueError, match="indices_tuple must be None"):
        loss(x, other, (y, y, y, y))


# Mined pairs and past embeddings: against pytorch-metric-learning's own loss of the same equation.


def test_contrastive_loss_with_mined_pairs_and_past_embeddings_is_the_librarys():
    (x, y), (past, old) = batch(), batch(1, 9)
    x, past = (torch.nn.functional.normalize(z) for z in (x, past))
    ours, theirs = chance_constrained.ProxyContrastiveLoss(), pml.ContrastiveLoss(0.0, 0.3841)
    mine = miners.MultiSimilarityMiner(epsilon=-0.3)
    for indices, references in (
        (None, (None, None)),
        (mine(x, y), (None, None)),
        (None, (past, old)),
        (mine(x, y, past, old), (past, old)),
    ):
        torch.testing.assert_close(ours(x, y, indices, *references), theirs(x, y, indices, *references))
    anchors, positives, negatives = triplets = tuple(index[:9] for index in miners.TripletMarginMiner(0.1)(x, y))
    pairs = (anchors, positives, anchors, negatives)
    once = [torch.unique(torch.stack(pairs[i : i + 2]), dim=1) for i in (0, 2)]  # the library counts a pair repeatedly
    torch.testing.assert_close(ours(x, y, triplets), theirs(x, y, (*once[0], *once[1])))
    assert ours(x, y, triplets) != ours(x, y)


def test_a_triplet_loss_takes_the_products_of_mined_pairs():
    x, y = batch()
    mined = miners.MultiSimilarityMiner()(x, y)
    ours = chance_constrained.ProxyTripletLoss(0.2)(torch.nn.functional.normalize(x), y, mined)
    torch.testing.assert_close(ours, pml.TripletMarginLoss(0.2)(x, y, mined))


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
def test_the_librarys_losses_are_given_mined_pairs_and_past_embeddings(name):
    (x, y), (past, old) = batch(), batch(1, 9)
    loss, mine = built(name), miners.MultiSimilarityMiner()
    assert loss(x, y, mine(x, y)) == loss.loss(x, y, mine(x, y))
    expected = loss.loss(x, y, loss.miner and loss.miner(x, y, past, old), past, old)
    assert loss(x, y, ref_emb=past.double(), ref_labels=old.int()) == expected != loss(x, y)
    with pytest.raises(ValueError, match="ref_emb and ref_labels must be given together"):
        loss(x, y, ref_emb=past)
    for wrong, labels, message in (
        (past[:, 1:], old, r"ref_emb must have shape \(N, \d+\) and ref_labels \(N,\), got"),
        (past, old[1:], r"ref_emb must have shape"),
        (past.tolist(), old, "ref_emb must be a torch tensor, got list"),
        (past.clone().index_fill_(0, torch.tensor(2), math.nan), old, "ref_emb contains NaN"),
        (past, old.float(), "labels must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(x, y, ref_emb=wrong, ref_labels=labels)


@pytest.mark.parametrize("name", ["c2", "triplet", "ms"])
def test_proxies_may_stand_where_past_embeddings_do(name):
    (x, y), (proxies, classes) = batch(), batch(1, 9)
    loss = built(name)
    assert loss(x, y, proxies, classes) == loss(x, y, ref_emb=proxies, ref_labels=classes)
    for arguments, message in (
        ({"indices_tuple": (y, y)}, "indices_tuple must be a miner's pairs"),
        ({"ref_labels": y}, "ref_labels without ref_emb"),
        ({"ref_emb": proxies.numpy(), "ref_labels": classes}, "ref_emb must be a torch tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(x, y, **arguments)


# Printing and loading


@pytest.mark.parametrize(
    ("name", "shown"),
    {
        "pfml": "num_classes=4, embedding_size=6, proxies_per_class=15, alpha=3.0, delta=0.2",
        "cpml": "repulsion='hinge'",
        "nivmf": "num_classes=4, embedding_size=6, distance='el_nivmf', concentration=50.0, temperature=1.0",
        "joint": "omega=0.3",
        "mfcont": "positive_margin=0.02, negative_margin=0.3, regularization=0.0, averaging='released'",
        "cwms": "num_classes=4, embedding_size=6, alpha=0.01, beta=80.0, delta=0.8",
        "softmax": "temperature=0.05",
        "xbm": "memory_size=800, warmup_steps=1000",
        "nt_xent": "temperature=0.1",
        "c2": "form='c2', positive_margin=0.0, negative_margin=0.3841, reduction='nonzero'",
        "triplet": "margin=0.0961",
        "ms": "alpha=2.0, beta=40.0, base=0.5",
        "contrastive": "num_classes=4, embedding_size=6",
        "plm": "embedding_size=6, num_proxies=5, dim=3, k=9, n_alpha=4.0",
        "contextual": "k=10, sigma=3.0, delta=1.0",
    }.items(),
)
def test_a_printed_loss_shows_its_hyperparameters(name, shown):
    assert shown in repr(built(name))


@pytest.mark.parametrize("name", LABELLED | UNLABELLED)
def test_parameters_alone_load_strictly(name):
    source, target = built(name), built(name)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    state = {key: value for key, value in source.state_dict().items() if not key.endswith("_extra_state")}
    assert set(dict(source.named_parameters())) <= set(state)
    target.load_state_dict(state)
    for key, parameter in target.named_parameters():
        assert torch.equal(parameter, state[key])


def test_a_generator_goes_on_where_a_state_of_parameters_alone_is_loaded():
    x, y = batch()
    for name in ("nivmf", "joint"):
        loss = built(name)
        loss(x, y)
        following = copy.deepcopy(loss)(x, y)
        loss.load_state_dict(dict(loss.named_parameters()))
        assert loss(x, y) == following


def test_numpy_labels_reach_a_loss_by_as_tensor():
    x, y = batch()
    assert built("mfnca")(x, torch.as_tensor(np.asarray(y, dtype=np.int32))) == built("mfnca")(x, y)
