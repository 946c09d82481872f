"""A loss of one's own in a run: its bytes are part of the key, it is given what it asks for, its faults are named."""

import sys

import pytest
import torch
from tiny import TINY

from experiments.training import keys, loop, own_loss
from experiments.training.builders import build_loss
from experiments.training.spec import RunSpec

ANCHORS = """
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import nn

class Anchors(nn.Module):
    def __init__(self, num_classes, embedding_size, margin=0.1, alpha=32.0):
        super().__init__()
        self.loss = ProxyAnchorLoss(num_classes, embedding_size, margin=margin, alpha=alpha)

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels)
"""


def code_of(tmp_path, text: str, name: str = "Anchors", file: str = "mine.py") -> dict[str, str]:
    (tmp_path / file).write_text(text)
    return own_loss.code_of(f"{tmp_path / file}:{name}")


def spec_of(code, **options) -> RunSpec:
    return TINY.replace(loss="own.OwnLoss", loss_options={"code": code, **options}, loss_lr={"*": 0.1})


def test_a_copy_of_a_loss_trains_exactly_as_the_loss(tmp_path):
    mine = loop.train(spec_of(code_of(tmp_path, ANCHORS)))
    theirs = loop.train(TINY.replace(loss="baselines.proxy_anchor", loss_lr={"*": 0.1}))
    assert mine.rows == theirs.rows and torch.equal(mine.losses, theirs.losses)


def test_a_changed_byte_is_another_run_and_another_name_of_the_file_is_none(tmp_path):
    key = keys.key_of(spec_of(code_of(tmp_path, ANCHORS)))
    assert keys.key_of(spec_of(code_of(tmp_path, ANCHORS, file="other.py"))) == key
    assert keys.key_of(spec_of(code_of(tmp_path, ANCHORS + " "))) != key
    assert keys.key_of(spec_of(code_of(tmp_path, ANCHORS), margin=0.2)) != key


def test_other_runs_do_not_hold_this_file():
    """So that it may change without their keys."""
    names = {path.name for path in keys.code_of("baselines.proxy_anchor", "supervised")}
    assert "baselines.py" in names and "own_loss.py" not in names
    assert "own_loss.py" in {path.name for path in keys.code_of("own.OwnLoss", "supervised")}


def test_a_changed_byte_in_a_package_is_another_run(tmp_path, monkeypatch):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(ANCHORS)
    monkeypatch.syspath_prepend(tmp_path)
    code = own_loss.code_of("my_package.mine:Anchors")
    assert "text" not in code and isinstance(own_loss.OwnLoss(code, 4, 8), torch.nn.Module)
    (package / "helpers.py").write_text("x = 1\n")
    own_loss._digest.cache_clear()
    assert own_loss.code_of("my_package.mine:Anchors")["sha256"] != code["sha256"]
    with pytest.raises(ValueError, match="files of the package have changed since"):
        own_loss.OwnLoss(code, 4, 8)
    for name in ("my_package.mine", "my_package"):
        sys.modules.pop(name, None)


def test_a_loss_gets_the_sizes_that_it_asks_for(tmp_path):
    text = "from torch import nn\n\ndef plain(margin=0.5):\n    found = nn.Identity()\n    found.margin = margin\n"
    code = code_of(tmp_path, text + "    return found\n", "plain")
    assert own_loss.OwnLoss(code, 4, 8, margin=0.25).loss.margin == 0.25
    assert build_loss(spec_of(code_of(tmp_path, ANCHORS)), 4, 8).loss.loss.proxies.shape == (4, 8)


def test_bad_labels_are_named_before_the_loss_sees_them(tmp_path):
    loss = own_loss.OwnLoss(code_of(tmp_path, ANCHORS), 4, 8)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 4\), found 9"):
        loss(torch.randn(2, 8), torch.tensor([1, 9]))


@pytest.mark.parametrize(
    "reference, message",
    [
        ("mine.py", "must be FILE.py:NAME or package.module:NAME"),
        ("{folder}/none.py:Anchors", "none.py cannot be read"),
        ("no_such_package.losses:Anchors", "no module 'no_such_package.losses'"),
        ("{folder}/mine.py:Ancors", "has no such class; it has ProxyAnchorLoss, Anchors"),
        ("torch.nn:NoLoss", "torch.nn has no such class"),
        ("{folder}/broken.py:Anchors", "SyntaxError"),
        ("{folder}/neighbour.py:Anchors", "No module named 'helpers_of_mine'.*not its neighbours"),
    ],
)
def test_a_loss_that_is_not_there_is_named(tmp_path, reference, message):
    for name, text in (("mine", ANCHORS), ("broken", "class"), ("neighbour", "import helpers_of_mine")):
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        own_loss.code_of(reference.format(folder=tmp_path))


def test_an_option_without_a_default_is_named(tmp_path):
    code = code_of(tmp_path, ANCHORS.replace("margin=0.1, alpha=32.0", "alpha, margin=0.1"))
    with pytest.raises(ValueError, match="alpha"):
        spec_of(code)
