"""Runs as jobs: each distinct one once, as plain data that trains the same, with what it needs."""

import json

import pytest
from tiny import TINY

from experiments import cli
from experiments.report import catalogue, jobs
from experiments.training import keys
from experiments.training.spec import RunSpec

EXECUTIONS = {
    name: {"notebook": name, "parameters": {"seeds": 1}} for name in ("10_pfml_retrieval", "12_pfml_proxy_alignment")
}


def test_runs_are_shared_between_notebooks_and_come_back_from_json():
    specs, index = jobs.expand(EXECUTIONS, "quick", cores=2, gpus=0)
    own = [set(execution["runs"]) for execution in index["executions"].values()]
    assert own[0] & own[1] and set(specs) == set(index["runs"]) == own[0] | own[1]
    notebook = catalogue.find("10")
    planned = notebook.specs_untrained(notebook.params.from_values({"seeds": 1}))
    again = [RunSpec(**json.loads(json.dumps(specs[key]))) for key in index["executions"]["10_pfml_retrieval"]["runs"]]
    assert {keys.key_of(spec) for spec in again} == {keys.key_of(spec) for spec in planned}


def test_what_a_run_needs():
    _, quick = jobs.expand(EXECUTIONS, "quick", cores=4, gpus=0)
    assert {run["threads"] for run in quick["runs"].values()} == {1}  # the spec says so
    trained = next(run for run in quick["runs"].values() if run["described"].startswith("PFML"))
    assert "dmlrepro/losses/potential_field.py" in trained["code"] and "dmlrepro/losses/nivmf.py" not in trained["code"]
    large = {"10": {"notebook": "10", "parameters": {"protocol": "mlrc", "seeds": 1}}}
    one, two = (jobs.expand(large, "paper", cores=4, gpus=gpus)[1] for gpus in (0, 1))
    (on_cores, on_gpu) = (list(index["runs"].values()) for index in (one, two))
    assert {run["threads"] for run in on_cores} == {4} and {run["gpus"] for run in on_gpu} == {1}
    slowest = max(range(len(on_gpu)), key=lambda i: on_gpu[i]["minutes"])
    assert on_cores[slowest]["minutes"] > 10 * on_gpu[slowest]["minutes"] > 100
    assert on_cores[slowest]["mem_mb"] > on_gpu[slowest]["mem_mb"]  # the activations lie on the GPU
    total = sum(run["minutes"] for run in on_gpu)
    assert two["executions"]["10"]["minutes"] > 10 * total  # it also searches


def test_a_parameter_that_a_notebook_refuses_names_the_execution():
    with pytest.raises(ValueError, match=r"execution mine: .*no parameter 'seed'"):
        jobs.expand({"mine": {"notebook": "10", "parameters": {"seed": 1}}}, "quick", cores=1, gpus=0)


def test_the_command_line_writes_specs_and_trains_one(tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(TINY.as_dict()))
    assert cli.main(["run", str(path)]) == 0
    assert keys.key_of(TINY) in capsys.readouterr().out
    for damaged in ("{}", '{"dataset": "gly'):  # fields that are missing, and a file that was cut
        path.write_text(damaged)
        assert cli.main(["run", str(path)]) == 2
        assert "run.json is not the spec of a run" in capsys.readouterr().err
