"""Names on record. Stored runs, tables and golden files keep the names that they were written with; where the code has
another name by now, a table here says which. A name that no table has is recorded as it is."""

from collections.abc import Mapping
from typing import Any

# name in the code -> name on record
LOSSES: dict[str, str] = {}  # `RunSpec.loss`
ALGORITHMS: dict[str, str] = {}  # `RunSpec.scheme`
FIELDS: dict[str, str] = {}  # fields of RunSpec
PARAMETERS: dict[str, str] = {}  # parameters of notebooks

_VALUES = {"loss": LOSSES, "scheme": ALGORITHMS}  # by field, as the code calls it


def spec_to_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a RunSpec under their recorded names, losses and algorithms too."""
    named = {name: _VALUES[name].get(value, value) if name in _VALUES else value for name, value in content.items()}
    return {FIELDS.get(name, name): value for name, value in named.items()}


def spec_from_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `spec_to_record`."""
    fields = _inverse(FIELDS)
    named = {fields.get(name, name): value for name, value in content.items()}
    return {
        name: _inverse(_VALUES[name]).get(value, value) if name in _VALUES else value for name, value in named.items()
    }


def parameters_to_record(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a notebook under their recorded names."""
    return {PARAMETERS.get(name, name): value for name, value in parameters.items()}


def parameters_from_record(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `parameters_to_record`."""
    names = _inverse(PARAMETERS)
    return {names.get(name, name): value for name, value in parameters.items()}


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {recorded: name for name, recorded in names.items()}
