"""Slots under hosts and launchers: their environment, and launchers that are rejected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cluster

import perdure

RANKS = ("PERDURE_SLOT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_RANK")


def run(cluster: Cluster, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program like a host, which does not know which slot the program will get."""
    environment = {k: v for k, v in cluster.environment.items() if k not in RANKS} | more
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_ranks_of_a_host(cluster: Cluster) -> None:
    said = f"import os; print(*(os.environ.get(name) for name in {RANKS}))"
    first = cluster.join(0)
    done = run(cluster, f"import perdure; job = perdure.start(); {said}", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert done.stdout.split() == ["1", "1", "0", "2", "1"], done.stderr
    # As if perdure.hf had been imported, which removes the variables.
    hf = "import sys; sys.modules['perdure.hf'] = sys"
    done = run(cluster, f"{hf}; import perdure; job = perdure.start(); {said}")
    assert done.stdout.split() == ["1", "None", "None", "None", "None"], done.stderr
    first.close()


def test_torchrun_in_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PERDURE_COORDINATOR", "127.0.0.1:1"
    )  # no process listens there: the program is rejected before it connects
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(perdure.UsageError, match="TORCHELASTIC_RUN_ID"):
        perdure.start()


def test_process_group_without_a_master(tmp_path: Path) -> None:
    """The error is torch's, and an additional last line says what to do."""
    program = tmp_path / "program.py"
    program.write_text("try:\n    raise ValueError('MASTER_ADDR expected')\nexcept ValueError:\n    raise RuntimeError")
    command = [sys.executable, "-m", "perdure", "--as-slot-of", "1", "", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    *_, error, last = done.stderr.splitlines()
    assert error == "RuntimeError"
    assert last.startswith("perdure: ")
    assert "MASTER_ADDR" in last
    program.write_text("raise RuntimeError")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "RuntimeError"


def test_ranks_end_with_the_job(cluster: Cluster) -> None:
    """A process does not ask its next job for the slot that it had in the previous one."""
    said = f"print(*(os.environ.get(name) for name in {RANKS}))"
    done = run(cluster, f"import os, perdure; job = perdure.start(); job.close(); {said}")
    assert done.stdout.split() == ["None"] * len(RANKS), done.stderr
