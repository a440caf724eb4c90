"""`perdure launch --join` and srun: programs on several machines, and their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cluster

from perdure import __main__, _agent
from perdure._nested import show_ranks

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PERDURE_SLOT")

PROGRAM = f"""
import os, sys
before = [os.environ.get(name) for name in {NAMES}]
import perdure
with perdure.start() as job:
    job.await_slots()
    with open(sys.argv[1] + os.environ["PERDURE_SLOT"], "w") as f:
        f.write(" ".join(str(of) for of in [*before, *(os.environ.get(name) for name in {NAMES})]))
    job.run(lambda _: None)
"""


def test_environment(tmp_path: Path) -> None:
    """Before perdure.start() a program knows its number on the machine, and afterwards its rank in the job."""
    (tmp_path / "program.py").write_text(PROGRAM)
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "3", "--consistency", "bsp")
    try:
        command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--join", cluster.owner.coordinator]
        command += ["--servers", "0", "--secret-file", cluster.owner.secret_file, "--dir", str(tmp_path / "host")]
        environment = {name: of for name, of in os.environ.items() if name not in NAMES}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "SLURM_LOCALID": "0", "SLURM_NODEID": "5"}
        done = subprocess.run(
            [*command, "--", str(tmp_path / "program.py"), str(tmp_path / "out")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done
    finally:
        cluster.end()
    found = sorted((tmp_path / f"out{slot}").read_text().split() for slot in range(2))
    assert sorted(of[1] for of in found) == ["0", "1"]
    for slot, of in enumerate(sorted(found, key=lambda of: of[5])):
        assert of[:1] + of[2:5] == ["None", "None", "2", "None"]
        assert of[5:] == [str(slot), of[1], "2", "2", str(slot)]


@pytest.mark.parametrize(("more", "folder"), [([], "--dir=perdure-host-3"), (["--dir=mine"], "--dir=mine")])
def test_command_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], folder: str) -> None:
    """An island of a host is one worker. Nodes of Slurm share the working directory, but no host directory."""
    monkeypatch.setenv("SLURM_NODEID", "3")
    monkeypatch.setattr(sys, "path", list(sys.path))
    became: list[list[str]] = []
    program = tmp_path / "train.py"
    program.write_text("")
    flags = ["--nproc", "4", "--nproc-per-learner", "2", "--join", "10.0.0.5:7000", *more, "--notice", "25s"]

    class Become(Exception):
        pass

    def become(_: str, args: list[str]) -> None:
        became.append(args)
        raise Become

    monkeypatch.setattr(_agent, "become", become)
    with pytest.raises(Become):
        __main__.launch([*flags, str(program), "--epochs", "3"])
    (args,) = became
    at = args.index("--")
    assert args[:3] == ["host", "--workers", "2"]
    assert {"--join=10.0.0.5:7000", "--notice=25s", folder} <= set(args[3:at])
    assert sum(of.startswith("--dir") for of in args) == 1
    assert args[at + 1 :] == [
        sys.executable, "-m", "perdure", "--as-slot-of", ":2,2", "", str(program), "--epochs", "3"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "tasks", "size"), [("0", "4(x2),3", "4"), ("2", "4(x2),3", "3"), ("3", "4(x2),3", None), ("0", "", None)]
)
def test_tasks_of_slurm(monkeypatch: pytest.MonkeyPatch, node: str, tasks: str, size: str | None) -> None:
    """A program that srun has started as a slot gets the variables of torchrun."""
    for name in (*NAMES, "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_NODEID", node)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    new = show_ranks(5, 11)
    found = [os.environ.get(name) for name in (*NAMES, "GROUP_RANK")]
    for name in new:
        del os.environ[name]  # monkeypatch would restore it
    assert found == ["5", "1", "11", size, "5", node]


def test_node_of_kubeflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubeflow Trainer sets torchrun's variables, also for a program that it starts as a slot."""
    for name in (*NAMES, "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PET_NODE_RANK", "2")
    new = show_ranks(1, 3)
    found = [os.environ.get(name) for name in (*NAMES, "GROUP_RANK")]
    for name in new:
        del os.environ[name]
    assert found == ["1", "0", "3", "1", "1", "2"]


@pytest.mark.parametrize(
    ("named", "flags", "workers"),
    [
        ("3", [], "3"),
        ("3", ["--nproc", "2"], "2"),
        ("auto", [], "2"),
        ("4", ["--nproc-per-learner", "2"], "2"),
        ("", [], "1"),
    ],
)
def test_processes_of_kubeflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, flags: list[str], workers: str
) -> None:
    """Without --nproc, a host has as many slots as Kubeflow Trainer names, or as the machine has GPUs."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", named)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    became: list[list[str]] = []
    monkeypatch.setattr(_agent, "become", lambda _, args: became.append(args))
    (tmp_path / "train.py").write_text("")
    for more in ["--join", "10.0.0.5:7000"], ["--clocks", "5"]:
        __main__.launch([*flags, *more, str(tmp_path / "train.py")])
    assert [of[:3] for of in became[:1]] == [["host", "--workers", workers]]
