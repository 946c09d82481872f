"""The short names of the losses: one table, which has every public loss, and imports nothing before it is asked."""

import importlib
import pickle
import subprocess
import sys

import pytest
from each_loss import needs, offered

from dmlrepro import losses, pml
from dmlrepro.losses._names import NAMES


def test_every_public_loss_has_one_short_name():
    """Those that take no more than sizes, and the joint loss."""
    public = {name for name, what in offered().items() if needs(what) <= {"num_classes", "embedding_size"}}
    assert set(NAMES.values()) == public | {"nivmf:JointProxyLoss"} and len(set(NAMES.values())) == len(NAMES)


def test_a_short_name_is_the_loss_itself_and_a_loss_made_by_it_is_pickled():
    assert dir(losses) == sorted(NAMES)
    for name, place in NAMES.items():
        module, _, attribute = place.partition(":")
        assert getattr(losses, name) is getattr(importlib.import_module(f"dmlrepro.losses.{module}"), attribute)
    assert type(pickle.loads(pickle.dumps(losses.PFML(3, 4)))) is losses.PFML


@pytest.mark.parametrize("package", [losses, pml])
def test_an_unknown_name_is_told_where_the_names_are(package):
    assert set(NAMES) <= set(dir(package))
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
