"""Strict checks of names and values; an error is one line with the argument, its value and a remedy."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Number = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Model = TypeVar("Model", bound=BaseModel)


def refuse_unknown(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """ValueError, as "unknown loss 'x'", on the first of some names that is not among those known, which it lists."""
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise ValueError(f"{what} {name!r}{hint} There are: {', '.join(known)}")


def checked(model: type[Model], values: Mapping[str, Any], *, whole: bool = True) -> Model:
    """The model of these values; not whole: some may be missing.

    Raises:
        TypeError: the first value that is wrong has the wrong type.
        ValueError: it makes no sense.
    """
    try:
        return model.model_validate(values)
    except ValidationError as invalid:
        wrong = next((error for error in invalid.errors() if whole or error["type"] != "missing"), None)
    if wrong is None:
        return model.model_construct()
    if wrong["type"] == "value_error":
        raise wrong["ctx"]["error"]
    argument, *places = wrong["loc"]
    name, value = f"{argument}{''.join(f'[{place!r}]' for place in places)}", wrong["input"]
    refusal = f"{name} {re.sub('^[A-Z][a-z]+ should', 'must', wrong['msg'])}, got {value!r}"
    if not wrong["type"].endswith("_type"):
        raise ValueError(refusal)
    number = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value)
    remedy = "; YAML reads 1e-5 as a string: write 1.0e-5" if number else ""
    if places and isinstance(places[0], int):
        remedy += f"; papermill takes a list as -p {argument} A,B or as -y '{argument}: [A, B]'"
    raise TypeError(f"{refusal} of type {type(value).__name__}{remedy}")
