"""A SLURM cluster of two nodes on the loopback of one machine, for the test of workflow/profiles/slurm.

    sudo .venv/bin/python tests/slurm/cluster.py    # installs SLURM on Debian and Ubuntu

Each node has two cores and one GPU, a generic resource behind which there is no device. Everything runs as the user who
asks and lies in one temporary folder: nothing is configured, and nothing remains.
"""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# cgroups need a hierarchy of their own, which containers lack
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# two nodes may have more cores and memory than the machine
SlurmdParameters=config_overrides
# squeue shows finished jobs for an hour
MinJobAge=3600
SchedulerParameters=batch_sched_delay=0
NodeName=left NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=16000 Gres=gpu:1
NodeName=right NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=16000 Gres=gpu:1
PartitionName=all Nodes=left,right Default=YES MaxTime=INFINITE State=UP
"""
GENERIC_RESOURCES = "NodeName=left,right Name=gpu File=/dev/null\n"


def found(name: str) -> str:
    """The path of a program of SLURM; its daemons are not on every user's PATH."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        raise FileNotFoundError(f"{name} is not installed: run `sudo {sys.executable} {__file__}`")
    return path


def installed() -> bool:
    try:
        return all(map(found, ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")))
    except FileNotFoundError:
        return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]


def wait_for(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds:.0f} seconds")
        time.sleep(0.2)


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """The environment in which commands find a cluster with two idle nodes. What it logged is printed if the block, or
    its own start, fails."""
    with tempfile.TemporaryDirectory(prefix="dmlrepro-slurm-") as name, ExitStack() as daemons:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "munge.key").touch(0o600)
        (folder / "munge.key").write_bytes(os.urandom(128))
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        written = CONFIGURATION.format(host=host, ports=free_ports(3), user=user, folder=folder)
        (folder / "slurm.conf").write_text(written)
        (folder / "gres.conf").write_text(GENERIC_RESOURCES)
        # Snakemake's jobs call srun without the variables of SLURM, by which this cluster is found
        (folder / "bin").mkdir()
        (folder / "bin" / "srun").touch(0o755)
        (folder / "bin" / "srun").write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {found("srun")} "$@"\n')
        environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        environment["SLURM_CONF"] = str(folder / "slurm.conf")

        def start(daemon: str, *options: str) -> None:
            """A daemon that ends with this process, even if that is killed."""
            command = [found("setpriv"), "--pdeathsig=KILL", found(daemon), *options]
            with (folder / f"{daemon}.out.log").open("a") as out:
                process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
            daemons.callback(process.wait)
            daemons.callback(process.kill)

        def ready() -> bool:
            asked = ["sinfo", "--noheader", "--Node", "--format=%t"]
            said = subprocess.run(asked, env=environment, capture_output=True, text=True)
            return said.stdout.split() == ["idle", "idle"]

        try:
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
            start("munged", "--foreground", "--force", *options)
            wait_for((folder / "munge.socket").exists, "munged listens")
            start("slurmctld", "-D")
            for node in ("left", "right"):
                start("slurmd", "-D", "-N", node)
            wait_for(ready, "both nodes are idle")
            yield environment
            subprocess.run(["scancel", "--user", user], env=environment, check=False)
        except BaseException:
            for path in sorted(folder.glob("*.log")):
                print(f"{path.name}:", *path.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
            raise


if __name__ == "__main__":
    subprocess.run(["apt-get", "update"], check=True)
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
    sys.exit(subprocess.run(install, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}).returncode)
