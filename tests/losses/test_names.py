"""The short names of the losses: one table, which has every public loss, and imports nothing before it is asked."""

import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys

import pytest
from torch import nn

from dmlrepro import losses
from dmlrepro.losses._names import NAMES


def public():
    """{"file:name"} of the modules, and functions that return one, that take no more than sizes, and the joint loss."""
    names = {"nivmf:JointProxyLoss"}
    for info in pkgutil.iter_modules(losses.__path__):
        module = importlib.import_module(f"dmlrepro.losses.{info.name}")
        for name, what in vars(module).items():
            if name.startswith("_") or getattr(what, "__module__", None) != module.__name__:
                continue
            made = inspect.signature(what).return_annotation if inspect.isfunction(what) else what
            known = inspect.signature(what).parameters.values() if inspect.isclass(made) else ()
            needed = {
                parameter.name
                for parameter in known
                if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
            }
            if inspect.isclass(made) and issubclass(made, nn.Module) and needed <= {"num_classes", "embedding_size"}:
                names.add(f"{info.name}:{name}")
    return names


def test_every_public_loss_has_one_short_name():
    assert set(NAMES.values()) == public() and len(set(NAMES.values())) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_name_is_the_loss_itself(name):
    module, _, attribute = NAMES[name].partition(":")
    assert getattr(losses, name) is getattr(importlib.import_module(f"dmlrepro.losses.{module}"), attribute)
    assert dir(losses) == sorted(NAMES)


def test_a_loss_by_its_short_name_is_pickled_by_its_own():
    from dmlrepro.losses import PFML

    loss = pickle.loads(pickle.dumps(PFML(3, 4, proxies_per_class=2)))
    assert type(loss) is losses.PFML and loss.proxies.shape == (3, 2, 4)


def test_an_unknown_name_is_told_where_the_names_are():
    with pytest.raises(AttributeError, match=r"no attribute 'PFLM'; dir\(dmlrepro.losses\)"):
        losses.PFLM  # noqa: B018
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
