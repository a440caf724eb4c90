"""What pages show of Python runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/guide/python.md", "python/README.md"])
def test_first_program(page: str, tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert program is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program.group(1)], env=environment, cwd=tmp_path, check=True)


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
