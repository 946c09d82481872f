"""The executions that a config of workflow/config asks for: notebooks times the parameters they are run with."""

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.files import write_text
from experiments.naming import stem_of


def executions(config: Mapping, notebooks: Iterable[str]) -> dict[str, dict]:
    """{name of an execution: {"notebook": its name, "parameters": those given}}, in the order of the config.

    The name is that of the notebook, and the parameters. `config` has the form of config/schema.yaml; its `notebooks`
    keeps those of them only.

    Raises:
        ValueError: a notebook that does not exist, or an execution that the config asks for twice.
    """
    known = sorted(notebooks)
    wanted = _named(str(config["notebooks"]).split(","), known) if "notebooks" in config else known
    found: dict[str, dict] = {}
    for entry in config["executions"]:
        names = known if entry["notebooks"] == "all" else _named(map(str, entry["notebooks"]), known)
        over = entry.get("over", {})
        for notebook, values in itertools.product(names, itertools.product(*over.values())):
            parameters = entry.get("parameters", {}) | dict(zip(over, values))
            name = stem_of(notebook, parameters).replace(",", "+")  # Snakemake's jobs on clusters mistake a comma
            if name in found:
                raise ValueError(f"executions: {name} is asked for twice; leave one out")
            found[name] = {"notebook": notebook, "parameters": parameters}
    return {name: each for name, each in found.items() if each["notebook"] in wanted}


def _named(names: Iterable[str], known: list[str]) -> list[str]:
    """Notebooks by name or number; YAML and Snakemake's --config read the number 00 as 0."""
    found = {name: [each for each in known if name.zfill(2) in (each, each.partition("_")[0])] for name in names}
    if unknown := [name for name, matches in found.items() if len(matches) != 1]:
        raise ValueError(f"notebooks: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return [each for matches in found.values() for each in matches]


def write(path: Path, content: object) -> None:
    """Write JSON, unless the file says the same already: what depends on it would be made anew."""
    text = json.dumps(content, indent=1) + "\n"
    if not path.exists() or path.read_text(encoding="utf8") != text:
        write_text(path, text)
