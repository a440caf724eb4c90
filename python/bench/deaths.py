"""How long the other processes stand when one process of a DataParallel training dies.

Two processes train a model of 9.9 million parameters, or with --large of 128 million, with AdamW. One of them is
killed. The time is the longest interval between two steps of the other one, less the median interval.

    python deaths.py --large
    python deaths.py --preload torch,perdure.torch
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from steps import model_of
from torch import nn

import perdure

_PIECE = 32 << 20


def created() -> float:
    """When this process was created, on the clock of time.monotonic."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def process(out: str, count: int, large: bool) -> None:
    """One of the processes. It writes when its phases have ended."""
    imported = time.monotonic()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = model_of(large)
    adam = torch.optim.AdamW(model.parameters(), 1e-4)
    times = []
    with perdure.start() as job:
        x, y = torch.randn(8, 1024), torch.randint(200, (8,))
        begun = time.monotonic()
        with perdure.DataParallel(job, model, adam) as p:
            loaded = time.monotonic()
            for _ in p.steps(count):
                adam.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                adam.step()
                times.append(time.monotonic())
        count = sum(p.numel() for p in model.parameters())
        phases = {
            "parameters": count,
            "created": created(),
            "imported": imported,
            "begun": begun,
            "loaded": loaded,
            "times": times,
        }
        Path(f"{out}.{job.slot}").write_text(json.dumps(phases))


def written(folder: str, size: int, read: bool = False) -> float:
    """Seconds to write a file of this size to the disk, and to read it."""
    data, path = os.urandom(_PIECE), f"{folder}/raw"
    begun = time.monotonic()
    with open(path, "wb") as f:
        for _ in range(size // _PIECE + 1):
            f.write(data)
        f.flush()
        os.fsync(f.fileno())
    if read:
        with open(path, "rb") as f:
            while f.read(_PIECE):
                pass
    took = time.monotonic() - begun
    os.unlink(path)
    return took


def measure(a: argparse.Namespace) -> list[float]:
    """Kill a process once. Return the seconds: all, imports, loading, the repeated step, a raw transfer."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "perdure", "launch", "--nproc=2", "--servers=1", "-q", f"--out={folder}/run"]
        launch += ["--recovery=resend:1000", f"--fault=kill:worker:1@clock:{a.steps // 2}"]
        launch += [f"--preload={a.preload}"] * bool(a.preload)
        own = [__file__, "--process", f"{folder}/out", "--steps", str(a.steps)] + ["--large"] * a.large
        done = subprocess.run(
            [*launch, *own], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"it failed:\n{done.stderr[-2000:]}")
        others, its = (json.loads(Path(f"{folder}/out.{slot}").read_text()) for slot in range(2))
        times = others["times"][2:]
        intervals = [b - a for a, b in itertools.pairwise(times)]
        usual = statistics.median(intervals)
        stood = max(intervals) - usual
        size = 12 * its["parameters"]
        return [
            stood, its["begun"] - its["created"], its["loaded"] - its["begun"], usual, written(folder, size, read=True),
        ]  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(description="How long a training stands when one of its processes dies.")
    p.add_argument("--large", action="store_true")
    p.add_argument("--preload", default="", help="as for perdure launch")
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--process", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.process:
        process(a.process, a.steps, a.large)
        return
    rounds = [measure(a) for _ in range(a.rounds)]
    names = ("the other process stood", "imports and joining", "loading", "a step", "raw write and read")
    for name, values in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:24} {statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})", flush=True)


if __name__ == "__main__":
    main()
