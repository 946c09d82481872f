"""The memory of a process whose needs are known, and tables of several devices."""

import os
import subprocess
import sys
from pathlib import Path

import harness

FOLDER = Path(harness.__file__).parent
MEBI = 1 << 20

FRESH = """
import torch, harness, test_timing
torch.ones(8).double()
print(harness.process_peak_bytes(test_timing.work, "cpu"))
"""


def test_the_peak_of_a_process_rises_by_what_a_call_needs():
    # a fresh process: in this one, memory that other tests have freed would be used again
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (FOLDER.parent / "tests", FOLDER.parent)))}
    command = [sys.executable, "-c", FRESH]
    process = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True)
    assert 0.9 * 96 * MEBI < int(process.stdout) < 1.3 * 96 * MEBI


def test_a_script_measures_in_a_process_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\n"
        "assert sys.argv[1] == '--measure'\n"
        "print(json.dumps([os.getpid(), *json.loads(sys.argv[2])]))\n"
    )
    process, *arguments = harness.apart(str(script), "case", 3, 0.5, None)
    assert arguments == ["case", 3, 0.5, None] and process != os.getpid()


def test_a_table_keeps_what_other_devices_measured(tmp_path):
    path = tmp_path / "table.csv"
    harness.write_table([{"case": "a", "device": "CPU", "value": 1.0}], path)
    harness.write_table([{"case": "a", "device": "NVIDIA X", "value": 0.25}], path)
    harness.write_table([{"case": "b", "device": "CPU", "value": 2.0}], path)
    assert path.read_text() == "case,device,value\na,NVIDIA X,0.25\nb,CPU,2\n"
    other = {"case": "b", "device": "CPU", "value": 2.0, "limit": 3}
    harness.write_table([other], path)  # what has other columns goes
    assert path.read_text() == "case,device,value,limit\nb,CPU,2,3\n"
    harness.write_table([{"case": "c", "value": 3}], path)  # without a device there is one machine
    assert path.read_text() == "case,value\nc,3\n"
