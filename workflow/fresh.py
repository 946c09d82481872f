"""Run a command with a temporary results folder and an empty temporary cache, so that whatever it executes really runs.

With --keep-cache before the command the cache is the usual one: for continuous integration, which has just trained the
same runs from the same sources in a clean clone.
"""

import os
import subprocess
import sys
import tempfile

command = sys.argv[1:]
if keep_cache := command[0] == "--keep-cache":
    del command[0]
with tempfile.TemporaryDirectory(prefix="dmlrepro-fresh-") as folder:
    environment = os.environ | {"DMLREPRO_RESULTS": os.path.join(folder, "results")}
    if not keep_cache:
        environment["DMLREPRO_CACHE"] = os.path.join(folder, "cache")
    sys.exit(subprocess.run(command, env=environment).returncode)
