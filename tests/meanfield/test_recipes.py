"""At the profile paper every run has the settings of Sec. 4.2 and of the released README, or those of MLRC; equal
starts where the loss alone is compared."""

import pytest
import torch
from planned import planned

from experiments.meanfield.claims import SAME_RATE
from experiments.training.builders import OPTIMIZERS, build_loss

SCHEDULES = {  # data set: (epochs of the drops, factor, warm-up, BatchNorm frozen)
    "cub": ((10, 20, 30, 40, 50), 0.5, 1.0, True),
    "cars": ((20, 40), 0.5, 1.0, True),
    "sop": ((20, 40), 0.25, 0.0, False),
    "inshop": ((20, 40), 0.25, 0.0, False),
}


@pytest.mark.parametrize("dataset", SCHEDULES)
def test_the_traditional_protocol(dataset):
    params, specs = planned("32", "paper", dataset=dataset)
    drops, factor, warmup, frozen = SCHEDULES[dataset]
    assert params.seeds == 10
    for spec in (spec for spec in specs if spec.loss):
        assert (spec.backbone, spec.embedding_size, spec.batch_size) == ("bn_inception", 512, 128)
        assert (spec.epochs, spec.patience, spec.monitor, spec.eval_every_epochs) == (60, 5, "MAP@R", 1)
        assert (spec.optimizer, spec.lr, spec.weight_decay, spec.loss_weight_decay) == ("adamw", 1e-4, 1e-4, 1e-4)
        assert (spec.lr_drop_epochs, spec.lr_drop) == (drops, factor)
        assert (spec.warmup_epochs, spec.freeze_batchnorm) == (warmup, frozen)
    one = {spec.method: spec for spec in specs if not spec.setting and spec.seed == 0}
    assert one["MFCont"].loss_options == {"positive_margin": 0.02, "negative_margin": 0.3, "regularization": 0.0}
    assert one["MFCWMS"].loss_options == {"alpha": 0.01, "beta": 80.0, "delta": 0.8, "regularization": 0.0}
    assert one["MFCont"].loss_lr == one["MFCWMS"].loss_lr == {"mean_fields": 0.2}
    assert one["ProxyAnchor"].loss_options == {"margin": 0.1, "alpha": 32.0}
    assert one["ProxyAnchor"].loss_lr == {"*": 0.01}
    assert [spec.samples_per_class for spec in (one["MFCont"], one["ProxyAnchor"], one["Cont"])] == [None, None, 4]


def test_proxy_nca_that_is_compared_with_mfnca_starts_and_learns_as_it_does():
    """Cosines do not see the length, and Adam's step does not see that of a gradient: an eighth of both is the same."""
    _, specs = planned("38", seeds=1)
    alike = next(spec for spec in specs if spec.setting == SAME_RATE)
    ours = next(spec for spec in specs if spec.method == "MFNCA")
    own = {name: getattr(ours, name) for name in ("loss", "loss_options", "loss_lr", "method", "setting")}
    assert alike.replace(**own) == ours
    embeddings, labels = torch.randn(6, 8), torch.tensor([2, 2, 2, 2, 2, 2])  # one class: Eq. 21 has its first term
    turned = []
    for spec in (ours, alike):
        loss = build_loss(spec, 5, 8)
        (fields,) = loss.parameters()
        start = fields.detach().clone()
        (rate,) = spec.loss_lr.values()
        optimizer = OPTIMIZERS["adamw"](loss.parameters(), lr=rate, weight_decay=0, eps=1e-30)
        for _ in range(3):
            optimizer.zero_grad()
            loss(embeddings, labels).backward()
            optimizer.step()
        turned.append(torch.nn.functional.normalize(torch.stack([start, fields.detach()]), dim=2))
    torch.testing.assert_close(*turned, rtol=1e-3, atol=1e-4)
