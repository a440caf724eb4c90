"""The programs in the pages about PyTorch run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

#: The program that the page assumes and then changes.
BEGUN = """
import torch
data = [(torch.randn(4), torch.randn(1)) for _ in range(320)]
model = torch.nn.Linear(4, 1)
def loss_of(a, b):
    return (a - b).square().mean()
"""

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "pytorch.md"
TRAINERS = PAGE.with_name("pytorch-trainers.md")

#: The code that the page assumes, for each library.
GIVEN = {
    "transformers": """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}
model, part_of_the_data = Model(), [{"x": torch.randn(4)} for _ in range(32)]
""",
    "lightning": """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)
model, part_of_the_data = Model(), torch.randn(32, 4)
""",
}


@pytest.mark.parametrize("library", GIVEN)
def test_program(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    programs = re.findall(r"```python\n(.*?)```", TRAINERS.read_text(), re.DOTALL)
    (program,) = [of for of in programs if library in of]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", GIVEN[library] + program], env=environment, cwd=tmp_path, check=True)


def by_two(program: str, folder: Path) -> None:
    """Run a program from the page in two processes."""
    (folder / "train.py").write_text(BEGUN + program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--recovery", "resend:auto", "-q", "train.py"]
    subprocess.run(command, env=environment, cwd=folder, check=True)


@pytest.mark.parametrize("way", ["DataParallel", "ServerOptimizer", "DiLoCo"])
def test_few_lines(way: str, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (program,) = [of for of in programs if f"perdure.{way}(" in of]
    if program is not programs[0]:
        loader = programs[0].index("optimizer =")  # the page says that the lines before are the same
        program = programs[0][:loader] + program
    by_two(program, tmp_path)


@pytest.mark.parametrize("way", ["DiLoCo", "DataParallel"])
def test_islands(way: str, tmp_path: Path) -> None:
    page = PAGE.with_name("islands.md").read_text()
    program, each_step = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    if way == "DataParallel":
        program = program[: program.index("with ")] + each_step
    given = BEGUN.replace("torch.nn.Linear(4, 1)", "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))")
    (tmp_path / "train.py").write_text(given + program)
    shown = re.search(r"^python (-m perdure launch .* train\.py)$", page, re.MULTILINE)
    assert shown is not None
    command = shown.group(1).replace("--nproc 8 --nproc-per-learner 4", "--nproc 4 --nproc-per-learner 2")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, *command.split()], env=environment, cwd=tmp_path, check=True)


def test_readme(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (PAGE.parents[2] / "README.md").read_text(), re.DOTALL)
    (program,) = [of for of in programs if "torch" in of]
    by_two(program, tmp_path)
