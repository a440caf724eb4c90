"""Helpers of the trainer tests: launching programs and collecting their results."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Cluster

import perdure


def launch(folder: Path, name: str, program: str, *flags: str) -> list[dict[str, Any]]:
    """Train with two processes, and return the JSON that each has written to the file given as its argument."""
    (folder / "train.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--servers", "2", "--clocks", "1000"]
    done = subprocess.run(
        [*command, *SMALL, "-q", "--out", f"{folder / name}.run", *flags, str(folder / "train.py"), str(folder / name)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    logs = (folder / f"{name}.run" / "logs" / f"worker-{rank}.log" for rank in range(2))
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in logs if log.exists())
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)]


def kills(folder: Path, name: str) -> int:
    """Return how many processes were killed."""
    return (folder / f"{name}.run" / "events.jsonl").read_text().count('"fault"')


class Death(Exception):
    """Raised where a program's process is supposed to die."""


def hash_of(model: Any) -> str:
    """Return a hash of a model's weights and buffers."""
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()


def begins(at: int, sync_every: int, *without: int) -> int:
    """Return the step after which a replacement process continues, with a draft of each step.

    Args:
        at: The step at whose end the predecessor died. It has no draft, since the next step would have written it.
        without: The interval, in steps, at which an epoch ends or an evaluation runs. Those steps have no draft.
    """
    last = at - 1
    while last % sync_every != 0 and any(last % every == 0 for every in without):
        last -= 1
    return last


def resume(folder: Path, run: str, program: str) -> str:
    """Continue a run of one slot with a program, and return the hash that it has written to its argument."""
    (folder / "resumed.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    execs = f"--exec={sys.executable} {folder / 'resumed.py'} {folder / 'hash'}"
    flags = ("--resume", str(folder / run), "--clocks", "1000", "--out", str(folder / f"{run}.resumed"))
    subprocess.run([os.environ["PERDURE_BINARY"], "up", "-q", execs, *flags], env=environment, cwd=folder, check=True)
    return (folder / "hash").read_text()


def lives(folder: Path, life: Callable[[perdure.Job, int], Any], deaths: int, *flags: str, drafts: bool = False) -> Any:
    """Train in the only slot of a job, in this process, whose death is simulated a number of times by ``Death``.

    Args:
        life: Trains until the next death. It receives the job and the number of that death.
        flags: Flags of the job.
        drafts: Whether drafts are written.

    Returns:
        The result of the last life.
    """
    cluster = Cluster(folder, "--workers", "1", "--servers", "1", "--clocks", "10000", *flags)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if drafts:
                patch.setenv("PERDURE_RUN", str(folder / "run"))
                patch.setattr("perdure._draft.SHARE", 1e9)
            for number in range(deaths):
                with pytest.raises(Death), cluster.join(0) as job:
                    life(job, number)
            with cluster.join(0) as job:
                return life(job, deaths)
    finally:
        cluster.end()
