"""At the profile paper every run has the settings of Sec. 4.2 and of the released README, or those of MLRC; equal
starts where the loss alone is compared."""

import torch
from planned import planned

from experiments.meanfield.claims import SAME_RATE
from experiments.training.builders import OPTIMIZERS, build_loss


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
