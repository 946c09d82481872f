"""Every loss by its short name, with a batch and how it is called: for tests that go through them all."""

import importlib
import inspect
import pkgutil

import torch
from torch import nn

from dmlrepro import losses

C, D, B = 6, 8, 24
SIZES = {"num_classes": C, "embedding_size": D}
NAMES = dir(losses)
HOLDING = ["NivMF", "ProxyAnchorNivMF", "JointProxy", "Margin", "XBM"]  # random streams, or a memory
UNLABELLED = ["ContextualSimilarity", "PLM"]  # two views, and no labels
LABELLED = [name for name in NAMES if name not in UNLABELLED]
LABELS = torch.arange(C).repeat_interleave(B // C)


def needs(what) -> set[str]:
    """The arguments of a loss that have no default."""
    known = inspect.signature(what).parameters.items()
    return {name for name, each in known if each.default is each.empty and each.kind is not each.VAR_KEYWORD}


def offered() -> dict:
    """{"file:name": loss} of the public losses: modules, and functions that say they return one, where they are."""
    found = {}
    for info in pkgutil.iter_modules(losses.__path__):
        module = importlib.import_module(f"dmlrepro.losses.{info.name}")
        for name, what in vars(module).items():
            if name.startswith("_") or getattr(what, "__module__", None) != module.__name__:
                continue
            made = inspect.signature(what).return_annotation if inspect.isfunction(what) else what
            if inspect.isclass(made) and issubclass(made, nn.Module):
                found[f"{info.name}:{name}"] = what
    return found


def built(name, seed=0, package=losses, **options):
    torch.manual_seed(seed)
    what = getattr(package, name)
    if name == "JointProxy":
        return what(losses.NivMF(C, D), losses.ProxyAnchor(C, D).loss, omega=0.3, **options)
    needed = needs(what.build if package is not losses else what)
    sizes = {key: size for key, size in SIZES.items() if key in needed}
    smaller = {"XBM": {"warmup_steps": 0, "memory_size": 2 * B}, "PLM": {"k": 5}}
    return what(**sizes, **smaller.get(name, {}) | options)


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, D, generator=generator) + torch.randn(C, D, generator=generator)[LABELS]
    return x.requires_grad_()


def call(loss, x):
    if isinstance(getattr(loss, "loss", loss), losses.PLM | losses.ContextualSimilarity):
        return loss(x, ref_emb=x.detach().roll(1, 1))
    return loss(x, LABELS.to(x.device))
