"""Import modules in the given order, in a process that has none of them, and print what each changes in the others.

    python tests/one_by_one.py MODULE ...

A module stands after those that it imports. Seen are the values of all names of a module as `repr` shows them.
"""

import importlib
import sys
import types


def state(packages: set[str]) -> dict[str, str]:
    """ "module.name": value, of all modules of some packages that are loaded."""
    return {
        f"{module.__name__}.{name}": repr(value)
        for module in list(sys.modules.values())
        if module.__name__.split(".")[0] in packages
        for name, value in vars(module).items()
        if not name.startswith("__") and not isinstance(value, types.ModuleType)
    }


def changed(name: str, packages: set[str]) -> list[str]:
    """What importing a module changes, adds or takes away outside of it."""
    before = state(packages)
    importlib.import_module(name)
    after = state(packages)
    return sorted(
        attribute
        for attribute in before.keys() | after.keys()
        if before.get(attribute) != after.get(attribute) and attribute.rpartition(".")[0] != name
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for change in changed(name, {each.split(".")[0] for each in sys.argv[1:]}):
            print(f"{name} changes {change}")
