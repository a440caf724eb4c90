"""Fixtures that start real jobs on this machine with the program in PERDURE_BINARY, or else bin/perdure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.job import _Owner

ROOT = Path(__file__).parents[2]
SMALL = ("--shards", "2")  # a table needs at least one row per shard, and these tables are small
os.environ.setdefault("PERDURE_BINARY", str(ROOT / "bin" / "perdure"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests compare models of processes, whose bits depend on it


@pytest.fixture
def job(tmp_path: Path) -> Iterator[perdure.Job]:
    """A job whose only worker is this process."""
    with perdure.start(servers=2, clocks=1000, out=tmp_path / "run", args=SMALL) as of:
        yield of


class Cluster:
    """A job whose workers the test starts."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.owner = _Owner(folder / "run", [*SMALL, "--grace=0s", *args])  # it ends without a last checkpoint
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PERDURE_COORDINATOR": self.owner.coordinator,
            "PERDURE_SECRET_FILE": self.owner.secret_file,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def join(self, slot: int) -> perdure.Job:
        return perdure.join(self.owner.coordinator, self.owner.secret_file, slot=slot)

    def program(self, text: str) -> subprocess.Popen[str]:
        """Start a program in slot 0. The test can read its output."""
        environment = self.environment | {"PERDURE_SLOT": "0"}
        return subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True)

    def end(self) -> None:
        self.owner.process.terminate()
        self.owner.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A job of two workers that no worker has joined yet."""
    of = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "50")
    yield of
    of.end()
