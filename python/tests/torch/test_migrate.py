"""The programs in "From DDP or torchft": the one before each diff, and the one after it, train the same weights."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "pytorch-migrate.md"
#: The samples of both programs in the same batches, for the comparison. The Sampler of a slot takes a block of each
#: global batch, but a DistributedSampler each second sample.
ORDER = "[i for at in range(0, 512, 64) for i in range(at + 32 * {0}, at + 32 * {0} + 32)]"


def programs(number: int) -> tuple[str, str]:
    """Return the program before one of the page's diffs, and the one after it, both without shuffling."""
    diffs = [of.splitlines() for of in re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    begin = [line for line in diffs[0][: diffs[0].index('-dist.init_process_group("gloo")')] if line[0] == " "]
    diff = diffs[number] if number == 0 else begin + diffs[number]
    assert max(sum(line[0] == sign for line in diff) for sign in "+-") <= 16
    before, after = ("\n".join(line[1:] for line in diff if line[0] != sign) for sign in "+-")
    rank = "dist.get_rank()" if number == 0 else "group"
    before, found = re.subn(r"sampler = .*DistributedSampler\(.*\)", f"sampler = {ORDER.format(rank)}", before)
    assert found == 1
    after, found = re.subn(r"batch=32\)", "batch=32, shuffle=False)", after)
    assert found == 1
    return before.replace("    sampler.set_epoch(epoch)\n", ""), after


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def perdure_weights(folder: Path, program: str, *flags: str) -> Any:
    """Run a program in a job of two slots, and return the weights that it has saved."""
    folder.mkdir()
    (folder / "train.py").write_text(program)
    (command,) = re.findall(r"```sh parse\npython (.* train\.py)\n", PAGE.read_text())
    arguments = command.replace("train.py", "").split()
    command = [sys.executable, *arguments, *SMALL, "-q", "--out", "run", *flags, "train.py"]
    done = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, check=False)
    logs = "".join(log.read_text() for log in folder.glob("run/logs/worker-*.log"))
    assert done.returncode == 0, done.stderr + logs
    assert (folder / "run" / "events.jsonl").read_text().count('"fault"') == len(flags)
    return torch.load(folder / "model.pt")


def compare(tmp_path: Path, before: Any, after: str, clocks: tuple[int, int]) -> None:
    """Compare the weights of the two programs, and those of the second one through two kills."""
    calm = perdure_weights(tmp_path / "calm", after)
    faults = (f"--fault=kill:worker:1@clock:{clocks[0]}", f"--fault=kill:server:0@clock:{clocks[1]}")
    torn = perdure_weights(tmp_path / "torn", after, *faults)
    assert list(calm) == list(torn) == list(before)
    for name, value in before.items():
        assert torch.equal(calm[name], torn[name])
        torch.testing.assert_close(calm[name], value, rtol=0, atol=1e-6)


def test_from_ddp(tmp_path: Path) -> None:
    before, after = programs(0)
    (tmp_path / "train.py").write_text(before)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compare(tmp_path, torch.load(tmp_path / "model.pt"), after, (9, 14))


def free_port() -> int:
    with socket.socket() as of:
        of.bind(("localhost", 0))
        return int(of.getsockname()[1])


def torchft_weights(folder: Path, program: str) -> Any:
    """Run a program in two replica groups of torchft, and return the weights that it has saved."""
    (folder / "train.py").write_text(program)
    port = free_port()
    lighthouse = [Path(sys.executable).parent / "torchft_lighthouse", "--min_replicas", "2", "--bind", f"[::]:{port}"]
    with subprocess.Popen(lighthouse, stderr=subprocess.DEVNULL) as serves:
        groups = []
        for group in range(2):
            command = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port()), "train.py"]
            more = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "REPLICA_GROUP_ID": str(group)}
            groups.append(
                subprocess.Popen(command, env=environment() | more, cwd=folder, stderr=subprocess.PIPE, text=True)
            )
        errors = [of.communicate(timeout=120)[1] for of in groups]
        serves.kill()
    assert [of.returncode for of in groups] == [0, 0], errors
    return torch.load(folder / "model.pt")


def test_from_torchft(tmp_path: Path) -> None:
    """Its builds are not in requirements-torch.txt: they are published daily, and removed later."""
    before, after = programs(1)
    if (Path(sys.executable).parent / "torchft_lighthouse").exists():
        weights = torchft_weights(tmp_path, before)
        compare(tmp_path, weights, after, (2, 4))
    else:
        compare(tmp_path, perdure_weights(tmp_path / "first", after), after, (2, 4))
