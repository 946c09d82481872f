"""Execute one notebook of the workflow: `execute.py GRID NAME OUTPUT`, where GRID says what NAME stands for.

Until it is finished the notebook lies in the folder failed/ beside its place, where it stays with its traceback when a
cell raises. What its cells print is printed, so that a log says how far they are.
"""

import json
import os
import sys
from pathlib import Path

# Reading a notebook's schema imports a package that compiles a grammar of international web addresses for more than a
# second, three quarters of what papermill takes to start; no field of a notebook is checked with it.
sys.modules.setdefault("rfc3987_syntax", None)

import papermill  # noqa: E402


def main(grid: Path, name: str, output: Path) -> None:
    asked = json.loads(grid.read_text(encoding="utf8"))
    execution = asked["executions"][name]
    unfinished = output.parent / "failed" / output.name
    unfinished.parent.mkdir(exist_ok=True)
    papermill.execute_notebook(
        f"notebooks/{execution['notebook']}.ipynb",
        str(unfinished),
        parameters={"profile": asked["profile"]} | execution["parameters"],
        progress_bar=False,
        stdout_file=sys.stdout,
        stderr_file=sys.stderr,
        shutdown_kernel="immediate",  # everything is written by then, and torch takes seconds to leave
    )
    os.replace(unfinished, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
