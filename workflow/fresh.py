"""Run a command with an empty temporary cache and results folder, so that whatever it executes really runs."""

import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory(prefix="dmlrepro-fresh-") as folder:
    environment = os.environ | {
        "DMLREPRO_CACHE": os.path.join(folder, "cache"),
        "DMLREPRO_RESULTS": os.path.join(folder, "results"),
    }
    sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)
