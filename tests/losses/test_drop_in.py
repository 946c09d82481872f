"""Every loss is called as pytorch-metric-learning's are, says what it has no meaning for, prints and loads."""

import copy
import importlib
import inspect
import math
import pickle
import subprocess
import sys

import pytest
import torch
from each_loss import LABELLED, LABELS, NAMES, SIZES, UNLABELLED, batch, built, call, needs, offered
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners
from torch.nn.functional import normalize

from dmlrepro import losses
from dmlrepro import pml as library
from dmlrepro.losses._names import NAMES as PLACES

PAIRS = {"CCPContrastive", "CCPTriplet", "CCPMultiSimilarity", "Contrastive", "MultiSimilarity", "Margin", "Triplet"}
PAIRS |= {"ProxyAnchor", "SoftTriple", "ArcFace", "CosFace"}  # what takes mined pairs, or hands them on to the library
WHOLE = sorted(set(LABELLED) - PAIRS)


@pytest.mark.parametrize("name", LABELLED)
def test_the_call_of_pytorch_metric_learning_is_understood(name):
    x, y = batch(), LABELS
    expected = built(name)(x, y)
    assert expected.isfinite()
    assert built(name)(x, y, None, None, None) == expected
    assert built(name)(embeddings=x, labels=y, indices_tuple=None, ref_emb=None, ref_labels=None) == expected
    assert all(built(name)(x, y.to(d)) == expected for d in (torch.uint8, torch.int8, torch.int16, torch.int32))


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_loss_has_no_meaning_for_is_named(name):
    x, loss = batch(), built(name)
    for argument, value in (("indices_tuple", (LABELS,) * 4), ("ref_emb", x), ("ref_labels", LABELS)):
        with pytest.raises(ValueError, match=rf"{argument} must be None, got a (tuple|Tensor): {type(loss).__name__} "):
            loss(x, LABELS, **{argument: value})


@pytest.mark.parametrize("name", UNLABELLED)
def test_a_loss_without_labels_takes_the_other_embeddings_in_either_place(name):
    x, y, loss = batch().detach(), LABELS, built(name)
    other = x + 0.1 * batch(2).detach()
    assert loss(x, other) == loss(x, ref_emb=other) == loss(x, None, None, other, None)
    for arguments, message in (
        ((x.numpy(), other), r"^embeddings must be a torch tensor.*pass torch.as_tensor\(embeddings\)"),
        ((x, other.tolist()), r"^momentum_embeddings must be a torch tensor.*torch.as_tensor\(momentum_embeddings\)"),
        ((x, y), "labels must be None.*learns without labels"),
        ((x, y, None, other), "labels must be None.*learns without labels"),
        ((x,), "momentum_embeddings are needed once"),
        ((x, other, None, other), "momentum_embeddings are needed once"),
        ((x, other, (y, y, y, y)), "indices_tuple must be None"),
        ((x, other[:3]), "momentum_embeddings must have the shape of embeddings"),
        ((x * math.nan, other), "embeddings contain NaN"),
        ((x, other * math.nan), "momentum_embeddings (contain NaN|must have the shape of embeddings and be finite)"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*arguments)


def test_contrastive_loss_with_mined_pairs_and_past_embeddings_is_the_librarys():
    (x, past), y, old = (normalize(batch(seed)) for seed in (1, 2)), LABELS, LABELS.roll(3)
    ours, theirs = losses.CCPContrastive(), pml.ContrastiveLoss(0.0, 0.3841)
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
    x, mined = batch(), miners.MultiSimilarityMiner()(batch(), LABELS)
    ours = losses.CCPTriplet(0.2)(normalize(x), LABELS, mined)
    torch.testing.assert_close(ours, pml.TripletMarginLoss(0.2)(x, LABELS, mined))


@pytest.mark.parametrize("name", ["Contrastive", "MultiSimilarity"])
def test_the_librarys_losses_are_given_mined_pairs_and_past_embeddings(name):
    x, y, past, old = batch(), LABELS, batch(2).detach()[:9], LABELS[::2][:9]
    loss, mined = built(name), miners.MultiSimilarityMiner()(x, y)
    assert loss(x, y, mined) == loss.loss(x, y, mined)
    expected = loss.loss(x, y, loss.miner and loss.miner(x, y, past, old), past, old)
    assert loss(x, y, ref_emb=past.double(), ref_labels=old.int()) == expected != loss(x, y)
    for wrong, labels, message in (
        (past, None, "ref_emb and ref_labels must be given together"),
        (past[:, 1:], old, r"ref_emb must have shape \(N, \d+\) and ref_labels \(N,\), got"),
        (past, old[1:], r"ref_emb must have shape"),
        (past.tolist(), old, "ref_emb must be a torch tensor, got list"),
        (past.clone().index_fill_(0, torch.tensor(2), math.nan), old, "ref_emb contains NaN"),
        (past, old.float(), "labels must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(x, y, ref_emb=wrong, ref_labels=labels)


@pytest.mark.parametrize("name", ["CCPContrastive", "CCPTriplet", "CCPMultiSimilarity"])
def test_proxies_may_stand_where_past_embeddings_do(name):
    x, y, proxies, classes = batch(), LABELS, batch(2).detach()[:9], LABELS[::2][:9]
    loss = built(name)
    assert loss(x, y, proxies, classes) == loss(x, y, ref_emb=proxies, ref_labels=classes)
    for arguments, message in (
        ({"indices_tuple": (y, y)}, "indices_tuple must be a miner's pairs"),
        ({"ref_labels": y}, "ref_labels without ref_emb"),
        ({"ref_emb": proxies.numpy(), "ref_labels": classes}, "ref_emb must be a torch tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(x, y, **arguments)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"JointProxy", "ProxyAnchorNivMF"}))
def test_a_printed_loss_shows_its_hyperparameters_and_so_does_its_copy(name):
    options, made_by = {}, getattr(losses, name)
    for option in inspect.signature(made_by).parameters.values():
        if type(option.default) in (int, float):
            options[option.name] = option.default + 1 if type(option.default) is int else option.default / 2
        elif type(option.default) is str:
            options[option.name] = option.default
    for loss in (made := built(name, **options), pickle.loads(pickle.dumps(made))):
        assert all(f"{size}={number}" in str(loss) for size, number in SIZES.items() if size in needs(made_by))
        for option, value in options.items():
            # the cosine softmax of squared distances has half their temperature
            assert f"{option}={value / 2 if name == 'ProxyNCAPP' else value!r}" in str(loss)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_alone_load_strictly(name):
    """What a loss holds beside them, a generator or a memory, goes on."""
    loss, source = built(name), built(name, seed=1)
    call(loss, batch())
    goes_on = copy.deepcopy(loss)
    loss.load_state_dict(dict(source.named_parameters()))
    with torch.no_grad():
        for ours, copied, loaded in zip(*(each.parameters() for each in (loss, goes_on, source)), strict=True):
            assert torch.equal(ours, loaded)
            copied.copy_(loaded)
    assert call(loss, batch(2)) == call(goes_on, batch(2))


def test_every_public_loss_has_one_short_name_which_is_the_loss_itself():
    """Those that take no more than sizes, and the joint loss."""
    public = {name for name, what in offered().items() if needs(what) <= {"num_classes", "embedding_size"}}
    assert set(PLACES.values()) == public | {"nivmf:JointProxyLoss"} and len(set(PLACES.values())) == len(PLACES)
    assert dir(losses) == sorted(PLACES)
    for name, place in PLACES.items():
        module, _, attribute = place.partition(":")
        assert getattr(losses, name) is getattr(importlib.import_module(f"dmlrepro.losses.{module}"), attribute)


@pytest.mark.parametrize("package", [losses, library])
def test_an_unknown_name_is_told_where_the_names_are(package):
    assert set(PLACES) <= set(dir(package))
    with pytest.raises(AttributeError, match=rf"no attribute 'PFLM'; dir\({package.__name__}\)"):
        package.PFLM  # noqa: B018
    with pytest.raises(ImportError, match="PFLM"):
        from dmlrepro.losses import PFLM  # noqa: F401


def test_importing_the_package_imports_no_loss_and_not_even_torch():
    code = """
import sys
from dmlrepro import losses
assert "PFML" in dir(losses) and "torch" not in sys.modules
losses.CCPContrastive
assert [name for name in sys.modules if name.startswith("dmlrepro.losses.") and "_names" not in name] and not {
    "dmlrepro.losses.baselines", "dmlrepro.losses.nivmf", "pytorch_metric_learning"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
