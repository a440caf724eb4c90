"""The package's type annotations are visible to mypy in a user's program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

PROGRAM = """
import perdure, torch

def train(job: perdure.Job, model: torch.nn.Module, inner: torch.optim.Optimizer) -> None:
    tokens = perdure.Count()
    tokens.add(3)
    with perdure.ServerOptimizer(job, model, perdure.Adam(1e-3), state=[]) as p:
        p.step()
    reveal_type(perdure.DiLoCo(job, model, inner, sync_every=100, weights=lambda: 1.0))
    perdure.DiLoCo("job", model, inner)
"""


def test_types(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--ignore-missing-imports",
            "--cache-dir",
            str(tmp_path),
            program,
        ],
        env=os.environ | {"MYPYPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    assert 'Revealed type is "perdure.torch.DiLoCo"' in said[0], done.stdout + done.stderr
    assert "[arg-type]" in said[1]
    assert len(said) == 3
