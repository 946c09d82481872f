"""What Snakemake asks of Kubernetes: `job.py submit ... SCRIPT` prints the name of a new job that runs a script of the
shared volume, `job.py status NAME` says how it goes. A pod that its node lost is not started again by Kubernetes:
Snakemake does so, with more time and memory.
"""

import argparse
import json
import subprocess
import sys
import uuid
from pathlib import Path


def manifest(options: argparse.Namespace, name: str) -> dict:
    """The job: one container with exactly the resources that were asked for."""
    limits = {"cpu": str(options.cores), "memory": f"{options.megabytes}M"}
    if options.gpus:
        limits["nvidia.com/gpu"] = str(options.gpus)
    container = {
        "name": "job",
        "image": options.image,
        "command": ["/bin/sh", str(Path(options.script).resolve())],
        "workingDir": str(Path.cwd()),
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "shared", "mountPath": options.path}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": options.claim}}
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app": "dmlrepro"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": 60 * options.minutes,
            "ttlSecondsAfterFinished": 24 * 3600,
            "template": {"spec": pod},
        },
    }


def submit(options: argparse.Namespace) -> str:
    name = f"dmlrepro-{uuid.uuid4().hex[:12]}"
    text = json.dumps(manifest(options, name))
    subprocess.run(["kubectl", "create", "-f", "-"], input=text, text=True, check=True, stdout=sys.stderr)
    return name


def status(options: argparse.Namespace) -> str:
    """ "running", "success" or "failed", as Snakemake calls them; a job that was deleted has failed."""
    found = subprocess.run(["kubectl", "get", "job", options.name, "-o", "json"], capture_output=True, text=True)
    if found.returncode:
        return "failed" if "NotFound" in found.stderr else "running"  # the server may not answer for a while
    said = json.loads(found.stdout).get("status", {})
    if said.get("succeeded"):
        return "success"
    return "failed" if said.get("failed") else "running"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    actions = parser.add_subparsers(required=True)
    submitting = actions.add_parser("submit")
    for name in ("image", "claim", "path"):
        submitting.add_argument(f"--{name}", required=True)
    for name in ("cores", "megabytes", "gpus", "minutes"):
        submitting.add_argument(f"--{name}", type=int, required=True)
    submitting.add_argument("script")
    submitting.set_defaults(run=submit)
    asking = actions.add_parser("status")
    asking.add_argument("name")
    asking.set_defaults(run=status)
    options = parser.parse_args()
    print(options.run(options))
