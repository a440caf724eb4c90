"""The Python programs in the documentation run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL

import perdure
from perdure._agent import binary

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/guide/python.md", "python/README.md"])
def test_first_program(page: str, tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert program is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program.group(1)], env=environment, cwd=tmp_path, check=True)


def test_several_processes(tmp_path: Path) -> None:
    page = (ROOT / "docs/guide/python.md").read_text()
    (tmp_path / "train.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1])
    shown = re.search(r"^python (-m perdure launch .* train\.py)$", page, re.MULTILINE)
    assert shown is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    calm = re.sub(r" --fault \S+", "", shown.group(1)).replace("runs/linear", "runs/calm")
    for command in (shown.group(1), calm):
        subprocess.run([sys.executable, *command.split()], env=environment, cwd=tmp_path, check=True)
    ends = {log.read_text().splitlines()[-1] for log in (tmp_path / "runs").glob("*/logs/worker-*.log")}
    assert len(ends) == 1
    assert float(ends.pop().removeprefix("largest error ")) < 1e-3
    events = (tmp_path / "runs/linear/events.jsonl").read_text()
    assert "worker:1 resumes" in events
    assert "server:0 serves again" in events


def test_program_of_its_clock(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/python.md").read_text(), re.DOTALL)[2]
    given = "import numpy as np, perdure\ngradient, position = np.ones((1000, 16)), b'7'\n"
    (tmp_path / "train.py").write_text(given + program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--clocks", "20", "-q", "train.py"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)


def test_kill_and_look(tmp_path: Path) -> None:
    page = (ROOT / "docs/guide/python.md").read_text()
    commands = re.findall(r"^perdure (.* --run runs/first)$", page, re.MULTILINE)
    assert len(commands) == 2
    with perdure.start(out=tmp_path / "runs" / "first", args=SMALL) as job:
        table = job.table("w", rows=4, dim=2, rule=perdure.Add())
        for command in commands:
            subprocess.run([binary(), *command.split()], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
        clocks = 0
        while clocks < 20 or "killed" not in (tmp_path / "runs/first/events.jsonl").read_text():
            table.inc([1], [[1, 1]])
            clocks = job.clock()
        assert table.get([1]).tolist() == [[clocks, clocks]]


def test_launch(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys, perdure\n"
        "with perdure.start() as job:\n"
        "    print(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:], job.slot, flush=True)\n"
        "    job.run(lambda clock: None)\n"
        "print('after')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--clocks", "5", f"--out={tmp_path / 'run'}"]
    subprocess.run([*command, "-q", str(program), "--epochs", "3"], env=environment, cwd=tmp_path, check=True)
    for slot in range(2):
        log = (tmp_path / "run" / "logs" / f"worker-{slot}.log").read_text().splitlines()
        assert log[1:] == [f"{slot} 2 ['--epochs', '3'] {slot}", "after"]
    for flags, said in ((["--nproc", "0", str(program)], "--nproc 0"), (["--nproc", "2", "nothing.py"], "nothing.py")):
        done = subprocess.run(
            [sys.executable, "-m", "perdure", "launch", *flags],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
