"""A package of an extra that is missing is named with what installs it."""

import pytest

from dmlrepro import extras


def test_what_is_there_passes():
    extras.require("numpy")
    extras.require("scikit-learn", "sklearn")


def test_what_is_missing_is_named_with_the_extra():
    with pytest.raises(ModuleNotFoundError, match=r"no-such-package is not installed.*dmlrepro\[notebooks\]") as caught:
        extras.require("no-such-package")
    assert caught.value.name == "no_such_package"
