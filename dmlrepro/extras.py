"""Packages that only a part of this one needs: torch and numpy are always there, the others come with an extra."""

import importlib.util


def require(package: str, import_name: str = "") -> None:
    """Raise ModuleNotFoundError, saying what to install, unless a package is there.

    Args:
        package: its name for pip.
        import_name: the name of its top module where that differs.
    """
    name = import_name or package.replace("-", "_")
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(
            f"{package} is not installed; pip install {package}, or 'dmlrepro[notebooks]' for all that is used here",
            name=name,
        )
