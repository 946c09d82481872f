"""A loss of one's own in a run: its bytes are part of the key, it is given what it asks for, its faults are named."""

import sys

import pytest
import torch
import torch.nn.functional as F
from tiny import ANCHORS, TINY
from torch import nn

from dmlrepro.losses import baselines
from experiments.training import keys, own_loss
from experiments.training.builders import build_loss
from experiments.training.spec import RunSpec


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a module, or changes it as if in another process, and gives the code of a loss in it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = set()

    def write(text: str = ANCHORS, name: str = "Anchors", module: str = "mine") -> dict[str, str]:
        path = tmp_path / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        names.update({module, module.partition(".")[0]})
        for known in names:
            sys.modules.pop(known, None)
        own_loss._digest.cache_clear()
        return own_loss.code_of(f"{module}:{name}")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file written twice in a second would be taken as it was
    yield write
    for name in names:
        sys.modules.pop(name, None)
    own_loss._digest.cache_clear()


def spec_of(code, **options) -> RunSpec:
    return TINY.replace(loss="own.OwnLoss", loss_options={"code": code, **options}, loss_lr={"*": 0.1})


def test_a_changed_byte_is_another_run(written):
    code = written()
    key = keys.key_of(spec_of(code))
    assert keys.key_of(spec_of(code, margin=0.2)) != key
    assert keys.key_of(spec_of(written(ANCHORS + " "))) != key
    with pytest.raises(ValueError, match="its files have changed since"):
        own_loss.OwnLoss(code, 4, 8)


@pytest.mark.parametrize("package", [True, False])
def test_files_beside_a_loss_count_where_they_are_of_its_package(package, written, tmp_path):
    code = written(module="folder.mine")
    if package:
        (tmp_path / "folder" / "__init__.py").write_text("")
        code = written(module="folder.mine")
    (tmp_path / "folder" / "other.py").write_text("x = 1\n")
    assert (written(module="folder.mine") != code) == package


def test_a_loss_gets_the_sizes_that_it_asks_for_and_bad_labels_and_options_are_named(written):
    text = "from torch import nn\n\ndef plain(margin=0.5):\n    found = nn.Identity()\n    found.margin = margin\n"
    assert own_loss.OwnLoss(written(text + "    return found\n", "plain"), 4, 8, margin=0.25).loss.margin == 0.25
    assert build_loss(spec_of(written()), 4, 8).loss.loss.proxies.shape == (4, 8)
    loss = own_loss.OwnLoss(written(), 4, 8)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 4\), found 9"):
        loss(torch.randn(2, 8), torch.tensor([1, 9]))
    with pytest.raises(ValueError, match="alpha"):
        spec_of(written(ANCHORS.replace("margin=0.1, alpha=32.0", "alpha, margin=0.1")))


DRAWS = """
import torch

class Draws(torch.nn.Module):
    def forward(self, z, y):
        return (z * torch.randn_like(z)).sum()
"""


def test_what_a_loss_draws_depends_on_its_seed_alone(written):
    values = []
    for disturbed in (3, 4):
        torch.manual_seed(0)
        loss = own_loss.OwnLoss(written(DRAWS, "Draws"), 4, 8)
        torch.manual_seed(disturbed)
        values.append([loss(torch.ones(2, 8), torch.tensor([0, 1])).item() for _ in range(2)])
    assert values[0] == values[1] and values[0][0] != values[0][1]


@pytest.mark.parametrize(
    "reference, text, message",
    [
        ("mine", ANCHORS, "must be package.module:NAME"),
        ("mine.py:Any thing", ANCHORS, "must be package.module:NAME"),
        ("no_such_package.losses:Anchors", ANCHORS, "cannot import 'no_such_package.losses'"),
        ("mine:Ancors", ANCHORS, "mine has no Ancors; it has ProxyAnchorLoss, Anchors"),
        ("torch.nn:NoLoss", ANCHORS, "torch.nn has no NoLoss"),
        ("mine:Anchors", "class", "SyntaxError"),
        ("mine:Anchors", "import helpers_of_mine", "No module named 'helpers_of_mine'"),
    ],
)
def test_a_loss_that_is_not_there_is_named(written, reference, text, message):
    written()
    with pytest.raises(ValueError, match=message):
        if text != ANCHORS:
            written(text)
        own_loss.code_of(reference)


class Proxies(nn.Module):
    def __init__(self, num_classes, embedding_size):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))

    def forward(self, embeddings, labels):
        return F.cross_entropy(F.normalize(embeddings) @ F.normalize(self.proxies).T, labels)


def far(embeddings):
    """0, with a gradient that is not finite."""
    return (embeddings - embeddings.detach()).square().sum(1).sqrt().sum()


UNSOUND = {
    "is nan; not finite: value": lambda loss, x, y: Proxies.forward(loss, x, y) + torch.tensor(0.0).log() * 0,
    "; not finite: embeddings": lambda loss, x, y: Proxies.forward(loss, x, y) + far(x),
    "ignores its labels": lambda loss, x, y: Proxies.forward(loss, x, torch.zeros_like(y)),
    "fails on an ordinary batch: RuntimeError: grad can be": lambda loss, x, y: F.normalize(x) @ loss.proxies.T,
    "fails on an ordinary batch: RuntimeError: element 0": lambda loss, x, y: torch.zeros(()),
    "the network would learn nothing": lambda loss, x, y: loss.proxies.square().sum(),
}


@pytest.mark.parametrize("loss", [Proxies, baselines.proxy_anchor, baselines.soft_triple, baselines.multi_similarity])
def test_a_sound_loss_is_not_refused_and_the_random_stream_stays_as_it_was(loss):
    before = torch.random.get_rng_state()
    own_loss.refuse_unsound(loss)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("message", UNSOUND)
def test_a_loss_with_which_no_training_makes_sense_is_refused(message):
    with pytest.raises(ValueError, match=message):
        own_loss.refuse_unsound(type("Unsound", (Proxies,), {"forward": UNSOUND[message]}))
