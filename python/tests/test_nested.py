"""Slots under hosts and launchers: their environment, and launchers that are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import Cluster

import perdure
from perdure._island import Island

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
    program = f"import perdure, perdure.accelerate; job = perdure.start(); {said}"  # the import removes the variables
    done = run(cluster, program, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert done.stdout.split() == ["1", "None", "None", "None", "None"], done.stderr
    first.close()


#: The environment of a rank that torchrun has started in a slot.
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "PERDURE_COORDINATOR": "127.0.0.1:1",  # no process listens there: ranks are rejected before they connect
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"PERDURE_COORDINATOR": ""}, "no job to join exists"),
        ({"PERDURE_ISLAND": "1"}, "torchrun was started inside an island"),
        ({"WORLD_SIZE": "4"}, "4 ranks, 2 of them on this host"),
        ({"MASTER_PORT": ""}, "is incomplete"),
    ],
)
def test_ranks_that_are_no_island(monkeypatch: pytest.MonkeyPatch, more: dict[str, str], said: str) -> None:
    for name, value in (TORCHRUN | more).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(perdure.UsageError, match=said) as caught:
        perdure.start()
    assert "\n" not in str(caught.value)


def test_torchrun_inside_torchrun() -> None:
    """The parent of the ranks was started by torchrun itself."""
    program = "import perdure\ntry: perdure.start()\nexcept perdure.UsageError as error: print(error)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    done = subprocess.run(
        [sys.executable, "-c", parent], env=os.environ | TORCHRUN, capture_output=True, text=True, check=False
    )
    assert done.stdout == "torchrun was started inside torchrun; start the program with one torchrun per slot\n"


def handshake(size: int, monkeypatch: pytest.MonkeyPatch, patience: float = 60.0) -> tuple[str, str]:
    """Connect an island of two ranks with a process that believes it is rank 1 of size. Return the errors of both."""
    monkeypatch.setattr("perdure._island._PATIENCE", patience)
    name = f"\0perdure-test-{os.getpid()}-{size}"
    leader, errors = Island(0, 2, name), ["", ""]

    def follow() -> None:
        try:
            Island(1, size, name).attach()
        except perdure.PerdureError as error:
            errors[1] = str(error)

    thread = threading.Thread(target=follow)
    if size:
        thread.start()
    with pytest.raises(perdure.UsageError) as caught:
        leader.admit(None, {})  # type: ignore[arg-type]
    if size:
        thread.join()
    return str(caught.value), errors[1]


def test_ranks_with_other_world_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = handshake(3, monkeypatch)
    assert here == there
    assert "rank 1 of this island has WORLD_SIZE 3, but rank 0 has 2" in here


def test_ranks_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ranks 1 of this island have not called" in handshake(0, monkeypatch, patience=0.1)[0]


def test_two_islands_in_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SLOT", "0")
    monkeypatch.setenv("PERDURE_HOST", f"test-{os.getpid()}")
    first = Island(0, 2, f"\0perdure-test-{os.getpid()}-1")
    with pytest.raises(perdure.UsageError, match="another island already has slot 0"):
        Island(0, 2, f"\0perdure-test-{os.getpid()}-2")
    with pytest.raises(perdure.UsageError, match="already rank 0 of this island"):
        Island(0, 2, f"\0perdure-test-{os.getpid()}-1")
    del first


def test_process_group_without_a_master(tmp_path: Path) -> None:
    """The error is torch's, and an additional last line says what to do."""
    program = tmp_path / "program.py"
    program.write_text("try:\n    raise ValueError('MASTER_ADDR expected')\nexcept ValueError:\n    raise RuntimeError")
    command = [sys.executable, "-m", "perdure", "--as-slot-of", "1", "", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
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
