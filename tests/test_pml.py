"""pytorch-metric-learning's own wrappers around the losses of this package."""

import copy
import functools
import pickle

import each_loss
import pytest
import torch
import torch.nn.functional as F
from each_loss import NAMES, UNLABELLED, C, D, call
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.regularizers import LpRegularizer
from pytorch_metric_learning.utils import loss_and_miner_utils
from torch.utils.checkpoint import checkpoint

from dmlrepro import losses as ours
from dmlrepro import pml as library
from dmlrepro.losses import baselines
from dmlrepro.pml import CrossBatchMemory, DistributedLossWrapper, SelfSupervisedLoss, order_one

built = functools.partial(each_loss.built, package=library)


def batches(count=4, size=8):
    generator = torch.Generator().manual_seed(0)
    return [(F.normalize(torch.randn(size, D, generator=generator)), torch.arange(size) % 4) for _ in range(count)]


@pytest.mark.parametrize("name", ["Contrastive", "MultiSimilarity", "Triplet", "CCPContrastive"])
def test_two_views_may_share_their_labels(name):
    (x, y), (other, _) = batches(2)
    for loss in (built(name), each_loss.built(name)):
        assert loss(x, y, ref_emb=other, ref_labels=y) == loss(x, y, ref_emb=other, ref_labels=y.clone()) != 0


def test_the_memory_is_no_weight():
    """It changes in training alone, checkpointing remembers a batch once, and a copy goes on with it."""
    memory = CrossBatchMemory(baselines.contrastive(C, D), D, 20)
    (x, y), *others = batches(3)
    memory(x, y)
    before = memory.state_dict()
    with torch.no_grad():
        memory(x, y)
    memory.eval()(x, y)
    assert all(torch.equal(value, before[key]) for key, value in memory.train().state_dict().items())
    resumed, checkpointed = CrossBatchMemory(baselines.contrastive(C, D), D, 20), copy.deepcopy(memory)
    resumed.load_state_dict(before)
    for x, y in others:
        x.requires_grad_()
        expected = torch.autograd.grad(memory(x, y), x)[0]
        assert torch.equal(torch.autograd.grad(resumed(x, y), x)[0], expected)
        value = checkpoint(checkpointed, x, y, use_reentrant=False)
        assert torch.equal(torch.autograd.grad(value, x)[0], expected)
    assert torch.equal(checkpointed.embedding_memory, memory.embedding_memory)


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner(0.1)])
def test_the_memory_gives_our_contrastive_loss_the_pairs_that_it_gives_the_librarys(miner):
    memory = CrossBatchMemory(ours.CCPContrastive("c2", 0.0, 0.5), D, 20, miner)
    theirs = losses.CrossBatchMemory(losses.ContrastiveLoss(0.0, 0.5), D, 20, miner)
    for x, y in batches():
        torch.testing.assert_close(memory(x, y), theirs(x, y))


def test_without_ranks_the_distributed_wrapper_is_the_loss():
    (x, y), loss = batches()[0], ours.PFML(C, D)
    for fixed in (False, True):
        wrapped = DistributedLossWrapper(loss.requires_grad_(not fixed))
        with pytest.warns(UserWarning, match="non-distributed"):
            value = wrapped(x, y)
        assert torch.equal(value, loss(x, y))
        if not fixed:
            value.backward()
            assert torch.equal(loss.proxies.grad, torch.autograd.grad(loss(x, y), loss.proxies)[0])


OF_PAIRS = ("CCPContrastive", "Contrastive", "Margin")  # their losses are those of pairs, or of triplets
EACH = ("NivMF", "MFCont", "NormSoftmax", "ProxyNCAPP", "CCPMultiSimilarity", "SoftTriple", "ArcFace", "CosFace")
WHOLE = ("PFML", "CPML", "ProxyAnchorNivMF", "JointProxy", "MFCWMS", "MFNCA", "Cont", "CWMS", "CCPTriplet", "XBM")


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_is_one_of_the_library_with_its_own_value(name):
    loss, x = built(name), each_loss.batch()
    again = copy.deepcopy(loss.loss)
    value = call(loss, x)
    assert isinstance(loss, losses.BaseMetricLossFunction) and type(loss).__name__ == name
    assert torch.equal(value, call(again, x))
    if name != "SoftTriple":  # its regulariser is a function within a function
        assert type(pickle.loads(pickle.dumps(loss))) is type(loss)
    value.backward()
    assert x.grad.isfinite().all() and x.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_is_zero_with_a_graph(name):
    x = torch.zeros(0, D, requires_grad=True)
    value = built(name)(x, None if name in UNLABELLED else torch.zeros(0, dtype=torch.int64))
    value.backward()
    assert value == 0 and x.grad.shape == (0, D)


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_is_that_of_value_gradients_and_bounds(name):
    x, plain, scaled = each_loss.batch(), built(name), built(name, scale=0.25)
    torch.testing.assert_close(call(scaled, x), 0.25 * call(plain, x))
    bounds = [[group.get("clip_value") for group in loss.parameter_groups(1e-3)] for loss in (plain, scaled)]
    assert bounds[1] == [bound and 0.25 * bound for bound in bounds[0]]


@pytest.mark.parametrize("name", EACH)
def test_the_losses_of_samples_average_to_the_loss(name):
    (x, y), plain = batches(1, 12)[0], built(name)
    unreduced = built(name, reducer=reducers.DoNothingReducer())(x, y)["loss"]
    assert unreduced["losses"].shape == (12,) and unreduced["reduction_type"] == "element"
    mean = built(name, reducer=reducers.MeanReducer())(x, y)
    expected = plain(x, y)
    torch.testing.assert_close(mean, expected)
    weights = torch.arange(C) + 1.0
    if name != "SoftTriple":  # whose regulariser is a second loss
        weighted = built(name, reducer=reducers.ClassWeightedReducer(weights))(x, y)
        torch.testing.assert_close(weighted, (weights[y] * unreduced["losses"]).mean())


def test_the_pairs_of_c2_are_those_of_the_librarys_contrastive_loss():
    (x, y), miner = batches(1, 12)[0], miners.MultiSimilarityMiner(0.1)
    for reducer in (reducers.MeanReducer(), reducers.SumReducer(), reducers.PerAnchorReducer()):
        theirs = losses.ContrastiveLoss(0.0, 0.3841, reducer=reducer)
        loss = library.CCPContrastive("c2", reducer=reducer)
        for mined in (None, miner(x, y)):
            torch.testing.assert_close(loss(x, y, mined), theirs(x, y, mined))
    assert library.CCPContrastive("c2")(x, y) == ours.CCPContrastive("c2")(x, y)
    unreduced = library.CCPContrastive("c2", reducer=reducers.DoNothingReducer())(x, y)
    for kind, same in (("pos", True), ("neg", False)):
        assert unreduced[f"{kind}_loss"]["reduction_type"] == f"{kind}_pair"
        anchors, others = unreduced[f"{kind}_loss"]["indices"]
        assert ((y[anchors] == y[others]) == same).all()


@pytest.mark.parametrize("name", OF_PAIRS + ("ProxyAnchor", "Triplet", "MultiSimilarity", "NTXent"))
def test_what_the_library_computes_takes_its_reducers(name):
    x, y = batches(1, 12)[0]
    loss = built(name, reducer=reducers.MeanReducer())
    value = loss(x, y)
    assert value.isfinite() and value.ndim == 0
    loss.set_reducer(None)
    if name != "Margin":  # which draws other triplets in every call
        torch.testing.assert_close(loss(x, y), built(name)(x, y))


@pytest.mark.parametrize("name", [*WHOLE, *UNLABELLED])
def test_what_has_no_losses_of_samples_says_so(name):
    loss = built(name)
    with pytest.raises(ValueError, match=r"reducer must be None, got MeanReducer: .* has one value for the"):
        loss.set_reducer(reducers.MeanReducer())
    assert loss.whole


def test_every_loss_has_losses_of_samples_or_of_pairs_or_says_so():
    known = {*EACH, *WHOLE, *UNLABELLED, *OF_PAIRS, "ProxyAnchor", "Triplet", "MultiSimilarity", "NTXent"}
    assert known == set(NAMES)


@pytest.mark.parametrize("name", ["NivMF", "MFCont", "NormSoftmax", "ProxyNCAPP"])
def test_mined_samples_are_weighed_as_the_library_weighs_them(name):
    x, y = batches(1, 12)[0]
    mined = tuple(torch.tensor(some) for some in ([0, 0, 1], [4, 8, 5], [2, 3], [0, 1]))
    weights = loss_and_miner_utils.convert_to_weights(mined, y, torch.float32)
    unreduced = built(name, reducer=reducers.DoNothingReducer())(x, y)["loss"]["losses"]
    torch.testing.assert_close(built(name)(x, y, mined), (weights * unreduced).mean())


def test_miners_and_memories_of_a_loss_of_the_whole_batch_are_refused_with_the_reason():
    x, y = batches()[0]
    for give in (lambda: built("PFML")(x, y, (y, y, y, y)), lambda: CrossBatchMemory(ours.PFML(C, D), D, 20)(x, y)):
        with pytest.raises(ValueError, match=r"indices_tuple must be None, got a tuple: .* takes the whole batch"):
            give()


@pytest.mark.parametrize(
    "name", ["CCPContrastive", "CCPTriplet", "CCPMultiSimilarity", "Contrastive", "MultiSimilarity"]
)
def test_memory_and_views_take_a_loss_of_pairs(name):
    memory = CrossBatchMemory(built(name), D, 20)
    for x, y in batches():
        value = memory(x.requires_grad_(), y)
        value.backward()
        assert value.isfinite() and x.grad.isfinite().all()
    (x, _), (view, _) = batches(2)
    for symmetric in (True, False):
        loss = getattr(library, name)(8, D) if name in ("Contrastive", "MultiSimilarity") else built(name)
        assert SelfSupervisedLoss(loss, symmetric)(x, view).isfinite()


def test_views_are_momentum_embeddings_of_a_loss_without_labels_and_classes_of_one_with():
    (x, _), (view, _) = batches(2)
    for name in UNLABELLED:
        assert SelfSupervisedLoss(built(name), symmetric=False)(x, view) == built(name)(x, ref_emb=view)
        with pytest.raises(ValueError, match="momentum_embeddings are needed once"):
            SelfSupervisedLoss(built(name))(x, view)
    theirs, ten = losses.SelfSupervisedLoss(losses.NTXentLoss(0.1)), library.NTXent(8, D)
    torch.testing.assert_close(SelfSupervisedLoss(ten)(x, view), theirs(x, view))
    torch.manual_seed(0)
    assert SelfSupervisedLoss(library.PFML(8, D))(x, view).isfinite()


def test_losses_of_one_order_are_added():
    torch.manual_seed(0)
    x, y = F.normalize(torch.randn(32, 16)), torch.arange(32) % 8
    field = ours.PFML(8, 16)
    before = copy.deepcopy(field.state_dict())
    scale = order_one(field, x, y)
    assert scale <= 1e-3 and 0.3 < scale * field(x, y) < 3.2
    assert all(torch.equal(field.state_dict()[key], value) for key, value in before.items())
    both = losses.MultipleLosses([library.Loss(field, scale=scale), library.NormSoftmax(8, 16)])
    torch.testing.assert_close(both(x, y), scale * field(x, y) + both.losses[1](x, y))
    with pytest.raises(ValueError, match="other than 0 on this batch, got 0"):
        order_one(ours.CCPContrastive(), x[:1], y[:1])
    with pytest.raises(ValueError, match="scale must be a finite number above 0, got 0"):
        library.PFML(8, 16, scale=0)


def test_a_regulariser_of_embeddings_is_added_in_float32():
    (x, y), much = batches(1)[0], LpRegularizer()
    loss = library.PFML(C, D, embedding_regularizer=much, embedding_reg_weight=0.5)
    half = x.half()
    expected = loss.loss(half, y) + 0.5 * half.float().norm(dim=1).mean()
    value = loss(half, y)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected)


def test_class_vectors_are_found_behind_the_librarys_base_class():
    for name, shape in (("SoftTriple", (6, 10, D)), ("ArcFace", (6, 1, D)), ("PFML", (6, 15, D))):
        found = baselines.proxies_of(getattr(library, name)(6, D))
        assert found.shape == shape
    assert baselines.proxies_of(library.Triplet(6, D)) is None
