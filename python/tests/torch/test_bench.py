"""The benchmarks run. They are short here, and their speed is not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_examples import make_pictures

pytest.importorskip("torch")
pytest.importorskip("torchdata")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be: that is the question.\n" * 2000)
    return path


def run(folder: Path, program: str, *args: object) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(BENCH / program), *map(str, args)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_storm(tmp_path: Path, text: Path) -> None:
    small = ("perdure", "--data", text, "--sync-every", 2, "--pace", 0.02, "--width", 16, "--layers", 1)
    for name, kills in (("calm", 0), ("storm", 900)):
        run(tmp_path, "storm.py", *small, "--per-hour", kills, "--minutes", 0.5, "--also", "--out", f"{name}.json")
    of = json.loads((tmp_path / "storm.json").read_text())
    assert of["kills"]
    assert any(line["what"] == "loss" for line in of["said"])
    page = run(tmp_path, "storm_page.py", "calm.json", "storm.json", "--picture", "storm.svg")
    assert "| 2 | learners, servers, coordinator, 900 an hour | perdure |" in page
    assert "</svg>" in (tmp_path / "storm.svg").read_text()


def test_failure(tmp_path: Path) -> None:
    make_pictures(tmp_path)
    short = ["--data", tmp_path, "--scale", 0.06, "--seconds", 120, "--trials", 1, "--cases", "killed"]
    for _ in range(2):  # the second time it has all runs
        said = run(tmp_path, "failure.py", *short, "--strategies", "stateless", "sync-stateless")
    rows = [line for line in said.splitlines() if "| killed | 1 |" in line]
    assert [row.split("`")[1] for row in rows] == ["stateless", "sync-stateless"]


def test_tokens(tmp_path: Path, text: Path) -> None:
    short = ["--steps", 4, "--sync-every", 2, "--learners", 2, "--seeds", 1]
    said = run(tmp_path, "tokens.py", "--data", text, *short, "--outer", 0.7, 0.9, "--outer", 1, 0.8)
    assert said.count("of one process with as many steps") == 2


def test_tokens_settings(tmp_path: Path, text: Path) -> None:
    short = ["--steps", 4, "--sync-every", 2, "--learners", 2, "--seeds", 2, "--width", 16, "--layers", 1]
    said = run(tmp_path, "tokens.py", "--data", text, *short, "--with", "", "--with", "compress=int8,overlap=1")
    assert "no settings: +0.00% (" in said
    assert "compress=int8,overlap=1: " in said


@pytest.mark.parametrize("which", [["--recovery", "resend:20"], ["--recovery", "none", "--server-optimizer"]])
def test_steps(tmp_path: Path, which: list[str]) -> None:
    said = run(tmp_path, "steps.py", "--batch", 2, "--processes", 2, "--steps", 2, "--rounds", 1, *which)
    assert "of DDP's time" in said


def test_memory(tmp_path: Path) -> None:
    said = run(tmp_path, "memory.py", "--layers", 2, "--width", 1024, "--steps", 20, "--recovery", "resend:20")
    assert "resend:20: " in said
    small = ["--layers", 2, "--width", 512, "--steps", 9, "--recovery", "resend:20"]
    said = run(tmp_path, "memory.py", *small, "--diloco", "sync_every=3,overlap=2,compress=int8")
    assert "DiLoCo sync_every=3,overlap=2,compress=int8: " in said


def test_deaths(tmp_path: Path) -> None:
    assert "the other process stood" in run(tmp_path, "deaths.py", "--steps", 12, "--rounds", 1)
