"""What a notebook would run, by its number."""

import json
from collections.abc import Iterable

from experiments.params import Params
from experiments.report import catalogue
from experiments.training.spec import RunSpec


def planned(name: str, profile: str = "quick", **values: object) -> tuple[Params, list[RunSpec]]:
    study = catalogue.find(name)
    params = study.configured({"profile": profile} | values)
    return params, study.specs_untrained(params)


def contents(specs: Iterable[RunSpec]) -> set[str]:
    return {json.dumps(spec.as_dict(), sort_keys=True) for spec in specs}
