"""Train notebooks from an empty temporary cache, and execute them with nbval.

    python workflow/fresh.py [--keep-cache] notebooks/00_tour.ipynb ...

Their tables go to a temporary results folder, so nothing that is committed is touched. With --keep-cache the cache is
the usual one: for continuous integration in a clean clone, where nothing but an earlier step of it can have filled it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NBVAL = "-m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=1800 -p no:cacheprovider"
SIDE_BY_SIDE = "-n auto --dist loadscope"  # a notebook's cells in their order, in one kernel


def main(*arguments: str) -> int:
    keep_cache = "--keep-cache" in arguments
    notebooks = [argument for argument in arguments if argument != "--keep-cache"]
    names = [Path(notebook).stem for notebook in notebooks]
    if not names:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="dmlrepro-fresh-") as folder:
        results = Path(folder, "results")
        (results / "quick").mkdir(parents=True)  # also where no notebook saves a table
        environment = os.environ | {"DMLREPRO_RESULTS": str(results)}
        if not keep_cache:
            environment["DMLREPRO_CACHE"] = str(Path(folder, "cache"))

        def python(*command: str) -> int:
            return subprocess.run([sys.executable, *command], env=environment).returncode

        # one pool of processes trains a run that notebooks share once; what fails is told by the notebook that needs it
        python("-m", "experiments", "train", *names)
        return python(*NBVAL.split(), *SIDE_BY_SIDE.split(), *notebooks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
