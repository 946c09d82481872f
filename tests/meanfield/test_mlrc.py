"""Notebooks 31 and 38: four folds of every method, equal starts where the loss alone is compared, Welch's test."""

import torch

from experiments.meanfield.claims import SAME_RATE
from experiments.report import catalogue
from experiments.training.builders import OPTIMIZERS, build_loss


def specs_of(name, **values):
    params = catalogue.find(name).configured(values)
    return params, catalogue.find(name).specs_untrained(params)


def test_at_the_profile_paper_it_is_mlrcs_protocol():
    params, specs = specs_of("31", profile="paper")
    assert params.seeds == 10
    per_class = {spec.method: spec.samples_per_class for spec in specs if spec.loss}
    assert {per_class[name] for name in ("Cont", "CWMS", "MultiSimilarity")} == {4}
    assert {per_class[name] for name in ("MFCont", "MFCWMS", "ArcFace", "ProxyAnchor")} == {1}
    for spec in (spec for spec in specs if spec.loss):
        assert (spec.backbone, spec.embedding_size, spec.batch_size) == ("bn_inception", 128, 32)
        assert (spec.optimizer, spec.lr, spec.train_from) == ("rmsprop", 1e-6, None)


def test_proxy_nca_that_is_compared_with_mfnca_starts_and_learns_as_it_does():
    """Cosines do not see the length, and Adam's step does not see that of a gradient: an eighth of both is the same."""
    _, specs = specs_of("38", seeds=1)
    alike = next(spec for spec in specs if spec.setting == SAME_RATE)
    ours = next(spec for spec in specs if spec.method == "MFNCA")
    assert (
        alike.replace(
            **{name: getattr(ours, name) for name in ("loss", "loss_options", "loss_lr", "method", "setting")}
        )
        == ours
    )
    embeddings, labels = torch.randn(6, 8), torch.tensor([2, 2, 2, 2, 2, 2])  # one class: Eq. 21 has its first term
    turned = []
    for spec in (ours, alike):
        loss = build_loss(spec, 5, 8)
        (fields,) = loss.parameters()
        start = fields.detach().clone()
        optimizer = OPTIMIZERS["adamw"](
            loss.parameters(), lr=next(iter(spec.loss_lr.values())), weight_decay=0, eps=1e-30
        )
        for _ in range(3):
            optimizer.zero_grad()
            loss(embeddings, labels).backward()
            optimizer.step()
        turned.append(
            (start / start.norm(dim=1, keepdim=True), fields.detach() / fields.detach().norm(dim=1, keepdim=True))
        )
    for a, b in zip(*turned):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
