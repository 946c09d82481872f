"""Tables of one notebook that does not exist."""

from experiments.analysis import results
from experiments.params import Params
from experiments.study import Study

EXAMPLE = Study("99_example", Params, paper="pfml")

ROW = {"paper": "pfml", "experiment": "99_example", "profile": "quick", "dataset": "glyphs", "method": "PFML"}


def table(*values):
    return results.frame([ROW | {"seed": i, "metric": "R@1", "value": value} for i, value in enumerate(values)])
