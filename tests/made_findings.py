"""Tables made for the findings of a notebook."""

from experiments.analysis import results, stored
from experiments.report import catalogue

WHERE = {"experiment": "99_some", "profile": "small", "dataset": "birds", "backbone": "conv4"}


def said(notebook: str, cells: dict[str, dict[str, float]], protocol: str = "") -> list[str]:
    """The findings of a notebook about a table of one seed: {"METHOD;setting": {metric: value}}."""
    entry = catalogue.find(notebook)
    rows = [
        WHERE
        | {"paper": entry.params.paper, "protocol": protocol}
        | {"method": cell.partition(";")[0], "setting": cell.partition(";")[2], "metric": metric, "value": value}
        for cell, values in cells.items()
        for metric, value in values.items()
    ]
    return stored.say(results.frame(rows), entry.findings)
