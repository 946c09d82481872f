"""Run a command with so many GPUs of its own: `with_gpus.py COUNT COMMAND...`; with 0, it sees none.

GPUs that a cluster has assigned (as many as asked for in CUDA_VISIBLE_DEVICES) stay as they are. Else the first free
ones are taken: each is held by a lock on a file of this machine, which the command inherits and ends with. The files
are those of one user: what others compute is not seen.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

LOCKS = Path(tempfile.gettempdir()) / f"dmlrepro-gpus-{os.getuid()}"  # nobody else may open these files
KEPT: list[FileLock] = []  # a lock that nobody refers to is released


def main(count: int, command: list[str]) -> None:
    devices = devices_here() if count else []
    if len(devices) < count:
        sys.exit(f"{count} GPUs are asked for and {len(devices)} are visible; lower gpus_per_run")
    assigned = "CUDA_VISIBLE_DEVICES" in os.environ and len(devices) == count
    visible = devices if assigned or not count else reserve(devices, count)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(visible)}
    os.execvpe(command[0], command, environment)


def devices_here() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, else all GPUs of this machine."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:  # no driver
        return []
    return listed.stdout.split() if listed.returncode == 0 else []


def reserve(devices: list[str], count: int) -> list[str]:
    """`count` free ones; waits while other jobs hold too many."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    while True:
        taken: dict[str, FileLock] = {}
        for device in devices:
            lock = FileLock(LOCKS / device, on_acquired=lambda handle: os.set_inheritable(handle, True))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            taken[device] = lock
            if len(taken) == count:
                KEPT.extend(taken.values())
                return list(taken)
        for lock in taken.values():
            lock.release()
        time.sleep(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
