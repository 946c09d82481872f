"""Every loss by its short name, with a batch and how it is called: for tests that go through them all."""

import inspect

import torch

from dmlrepro import losses

C, D, B = 6, 8, 24
NAMES = dir(losses)
HOLDING = ["NivMF", "ProxyAnchorNivMF", "JointProxy", "Margin", "XBM"]  # random streams, or a memory
LABELS = torch.arange(C).repeat_interleave(B // C)


def built(name, seed=0):
    torch.manual_seed(seed)
    if name == "JointProxy":
        return losses.JointProxy(losses.NivMF(C, D), losses.ProxyAnchor(C, D).loss, omega=0.3)
    needed = inspect.signature(getattr(losses, name)).parameters
    sizes = {key: size for key, size in (("num_classes", C), ("embedding_size", D)) if key in needed}
    options = {"XBM": {"warmup_steps": 0, "memory_size": 2 * B}, "PLM": {"k": 5}}
    return getattr(losses, name)(**sizes, **options.get(name, {}))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, D, generator=generator) + torch.randn(C, D, generator=generator)[LABELS]
    return x.requires_grad_()


def call(loss, x):
    if isinstance(loss, losses.PLM | losses.ContextualSimilarity):
        return loss(x, ref_emb=x.detach().roll(1, 1))
    return loss(x, LABELS.to(x.device))
