"""The loop of nanoGPT with five changed lines trains the same weights, whatever dies."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "nanogpt"
PAGE = Path(__file__).parents[3] / "docs" / "guide" / "pytorch.md"
STEPS = 80

KILLS = ["worker:0@clock:12", "worker:1@clock:12", "server:0@clock:25", "coordinator@clock:30", "worker:1@clock:50"]
KILLS += ["server:1@clock:41", "worker:0@clock:50", "coordinator@clock:58", "worker:1@clock:66", "worker:0@clock:79"]


def changes() -> list[str]:
    """Return the differences between the two programs as ``diff -w`` prints them, without their docstrings."""
    texts = ((EXAMPLE / name).read_text().partition("import math")[2] for name in ("plain.py", "train.py"))
    plain, train = (text.splitlines() for text in texts)
    match = difflib.SequenceMatcher(None, [s.strip() for s in plain], [s.strip() for s in train], autojunk=False)
    shown = []
    for kind, i, i_end, j, j_end in match.get_opcodes():
        if kind != "equal":
            shown += ["-" + line for line in plain[i:i_end]] + ["+" + line for line in train[j:j_end]]
    return [line for line in shown if line != "+"]  # empty lines do not count


def test_five_lines() -> None:
    found = changes()
    assert len([line for line in found if line[0] == "+"]) == 5, found
    assert [line for line in found if line[0] == "-"] == ["-for step in range(STEPS):"]


def test_page() -> None:
    (block,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = block.splitlines()
    assert [line for line in lines if line[0] in "+-"] == changes()
    train = [line.strip() for line in (EXAMPLE / "train.py").read_text().splitlines()]
    unknown = [line for line in lines if line[0] != "-" and line[1:].strip() not in [*train, "…"]]
    assert not unknown


def trained(folder: Path, slots: int, *flags: str) -> tuple[list[str], str]:
    """Train for 80 steps. Returns the last line that each slot prints, and the events of the run."""
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", str(slots), "--servers", "2", "-q", *flags]
    command += ["--preload", "torch,torch._dynamo,perdure.torch", f"--out={folder / 'run'}", str(folder / "train.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    logs = [(folder / "run" / "logs" / f"worker-{slot}.log").read_text() for slot in range(slots)]
    assert done.returncode == 0, done.stderr + "".join(logs)
    return [log.splitlines()[-1] for log in logs], (folder / "run" / "events.jsonl").read_text()


def folder(path: Path) -> Path:
    """Make a directory with the programs, with fewer steps."""
    shutil.copytree(EXAMPLE, path)
    for name in ("plain.py", "train.py"):
        text = (path / name).read_text()
        (path / name).write_text(re.sub(r"\nSTEPS, (.*) = \d+,", rf"\nSTEPS, \1 = {STEPS},", text))
    return path


def test_one_slot_is_the_plain_loop(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(plain / "plain.py")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.startswith("test loss ")
    assert trained(folder(tmp_path / "one"), 1)[0] == [said.strip()]


def test_ten_kills(tmp_path: Path) -> None:
    (first, second), _ = trained(folder(tmp_path / "calm"), 2)
    assert first == second
    assert first.startswith("test loss ")
    faults = [f"--fault=kill:{kill}" for kill in KILLS]
    said, events = trained(folder(tmp_path / "kills"), 2, "--recovery", "resend:10", *faults)
    assert said == [first, first]
    assert events.count('"fault"') == len(KILLS)
    assert '"rollback"' in events
