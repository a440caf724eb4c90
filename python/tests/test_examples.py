"""The examples run."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def launch(folder: Path, example: str, *args: str) -> str:
    """Run an example in two slots, and return the last line that slot 0 prints."""
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "-q", "--out", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(EXAMPLES / example), *args], env=environment, cwd=folder, check=True)
    return (folder / "run" / "logs" / "worker-0.log").read_text().splitlines()[-1]


def make_pictures(folder: Path) -> None:
    """Write random images and classes in the form of Fashion-MNIST."""
    rng = np.random.default_rng(1)
    for part, count in (("train", 128), ("t10k", 64)):
        pictures, classes = rng.integers(256, size=(count, 28, 28)), rng.integers(10, size=count)
        for kind, head, values in (("images-idx3", 16, pictures), ("labels-idx1", 8, classes)):
            data = gzip.compress(bytes(head) + values.astype(np.uint8).tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(data)


def test_short() -> None:
    for example in EXAMPLES.rglob("*.py"):
        assert len(example.read_text().splitlines()) <= 80, example


def test_recommend(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    taste = rng.standard_normal((2, 40))
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for time in range(4000):
        user, film = rng.integers(40, size=2)
        stars = 3 + (taste[0, user] + taste[1, film] > 0) * 2
        lines.append(f"{user}\t{film}\t{stars}\t{time}")
    (tmp_path / "ml-100k.inter").write_text("\n".join(lines) + "\n")
    said = launch(tmp_path, "recommend.py", "--data", str(tmp_path), "--clocks", "60")
    assert said.startswith("AUC of the last tenth: ")
    assert float(said.split()[-1]) > 0.8


@pytest.mark.parametrize("example", ["shakespeare.py", "fashion.py", "failure.py"])
def test_torch(tmp_path: Path, example: str) -> None:
    pytest.importorskip("torchdata")
    if example == "shakespeare.py":
        (tmp_path / "text").write_text("To be, or not to be, that is the question.\n" * 200)
        said = launch(tmp_path, example, "--data", str(tmp_path / "text"), "--steps", "8", "--sync-every", "4")
        assert said.startswith("step 8: test loss ")
        return
    make_pictures(tmp_path)
    more = ("--batch", "16") if example == "fashion.py" else ("--seconds", "2", "--step", "0.1")
    said = launch(tmp_path, example, "--data", str(tmp_path), *more)
    assert said.startswith("test accuracy ")
