"""A loss of the reader's own in a training run: the run keeps the text of its file, so that its key knows every byte.

`python -m experiments bench my_loss.py:MyLoss` trains with it, see docs/your_loss.md.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dmlrepro.losses.checks import check_batch, whole_labels
from dmlrepro.losses.recommended import PROXIES, groups


class OwnLoss(nn.Module):
    """Any module called as loss(embeddings, labels), behind this package's checks of a batch.

    code: of `code_of`. num_classes, embedding_size: handed on if the loss asks for them by these names. options: all
    others of the loss. It sees at least float32, under autocast too. ValueError names a loss that cannot be made.
    """

    def __init__(self, code: Mapping[str, str], num_classes: int, embedding_size: int, **options: object):
        super().__init__()
        builder = builder_of(code)
        sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
        self.loss = builder(**{name: size for name, size in sizes.items() if name in asked_by(builder)}, **options)
        if not isinstance(self.loss, nn.Module):
            raise ValueError(f"{code['name']} must give a torch module, got a {type(self.loss).__name__}")
        self.num_classes, self.embedding_size = num_classes, embedding_size

    def parameter_groups(self, lr: float) -> list[dict]:
        """Groups for an optimiser, lr being the network's rate: those of the loss itself, else its parameters at
        PROXIES times the network's rate."""
        own = getattr(self.loss, "parameter_groups", None)
        return own(lr) if own else groups(self, {"*": PROXIES * lr})

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        labels = whole_labels(embeddings, labels)
        check_batch(embeddings, labels, self.num_classes, self.embedding_size, least_norm=0.0)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.loss(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), labels)


def code_of(reference: str) -> dict[str, str]:
    """What a run keeps of "FILE.py:NAME", which is the text of the file, or of "package.module:NAME", which is a digest
    of all Python files of the package; NAME is a class or a function that returns a module.

    Raises:
        ValueError: the reference has another form, or there is no such file, module or name.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(f"loss must be FILE.py:NAME or package.module:NAME, got {reference!r}")
    if where.endswith(".py"):
        try:
            code = {"name": name, "text": Path(where).read_bytes().decode("utf8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"loss {reference!r}: {where} cannot be read ({error})") from error
    else:
        code = {"name": name, "module": where, "sha256": _digest(where)}
    builder_of(code)
    return code


def digest_of(code: Mapping[str, str]) -> str:
    """Hex sha256 of the bytes of the file, or of the package."""
    return code["sha256"] if "sha256" in code else hashlib.sha256(code["text"].encode()).hexdigest()


def builder_of(code: Mapping[str, str]) -> Callable[..., nn.Module]:
    """The class or function that `code` names; ValueError if it cannot be loaded, or the package has changed since."""
    name, where = code["name"], code.get("module", "its file")
    if "module" in code and _digest(where) != code["sha256"]:
        raise ValueError(f"loss {where}:{name}: files of the package have changed since; start again")
    try:
        module = importlib.import_module(where) if "module" in code else _module(code["text"])
    except Exception as error:  # whatever its first line does
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"loss {name}: {where} cannot be imported ({reason}); a file may import what is installed and not its "
            "neighbours: give a loss of several files as package.module:NAME"
        ) from error
    builder = getattr(module, name, None)
    if not callable(builder):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(f"loss {name}: {where} has no such class; it has {', '.join(known) or 'no torch module'}")
    return builder


def asked_by(builder: Callable[..., nn.Module]) -> dict[str, inspect.Parameter]:
    """The arguments that a loss takes by name."""
    every = inspect.signature(builder).parameters.values()
    return {
        argument.name: argument
        for argument in every
        if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
    }


@functools.lru_cache(8)
def _module(text: str) -> types.ModuleType:
    """A file as a module. It is executed once per process, and tracebacks show its lines."""
    name = f"own_loss_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses and torch look there
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _digest(module: str) -> str:
    """Of all Python files of the package that a module belongs to, with their names."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:  # "__main__" has none
        spec = None
    if spec is None or not spec.origin:
        raise ValueError(f"loss: there is no module {module!r}; is it installed, or below the folder you are in?")
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    content = [[file.relative_to(origin.parent).as_posix().encode(), file.read_bytes()] for file in files]
    return hashlib.sha256(repr(content).encode()).hexdigest()
