"""Tables as notebooks would have them, without training anything."""

from collections.abc import Iterable

from experiments.analysis import results
from experiments.report import catalogue


def as_if_finished(name: str, profile: str = "quick", metrics: Iterable[str] = ("R@1",), extra: Iterable[str] = ()):
    """The rows of a notebook's runs, every value 50; extra: further settings of the runs that have none.

    The models that a protocol trains on folds are one row.
    """
    notebook = catalogue.find(name)
    params = notebook.configured({"profile": profile})
    specs = notebook.specs_untrained(params)
    first = min((spec.fold for spec in specs if spec.fold is not None), default=None)
    common = {"paper": params.paper, "experiment": params.notebook, "profile": profile, "dataset": "glyphs"}
    return results.frame(
        common
        | {"backbone": spec.backbone, "dim": spec.embedding_size or 0, "protocol": spec.protocol, "seed": spec.seed}
        | {"method": spec.method, "setting": setting, "metric": metric, "value": 50.0}
        for spec in specs
        if spec.fold in (None, first)
        for setting in (spec.setting, *(extra if not spec.setting else ()))
        for metric in metrics
    )
