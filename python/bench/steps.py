"""The time of a step of ServerOptimizer, compared with DistributedDataParallel over gloo.

Four processes train a model of 9.9 million parameters.

    python steps.py --batch 8 64 256 --recovery none resend:auto

All processes share this machine, and so do Perdure's servers. A step without communication is timed in the same
processes, before: what a step takes more is what communication costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ALONE = 10  # steps without communication, and as many before these
WARM = 40  # steps before those that are timed: until memory that is used again and again has been used once


def timed(step: Callable[[], None], count: int) -> list[float]:
    """Seconds that each of some steps took."""
    found = []
    for _ in range(count):
        begun = time.monotonic()
        step()
        found.append(time.monotonic() - begun)
    return found


def process(how: str, batch: int, count: int, out: str) -> None:
    """One of the processes. Rank 0 writes what it has seen."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1600), nn.ReLU(),
        nn.Linear(1600, 200),
    )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), 1e-4)
    rank = int(os.environ["RANK"])
    g = torch.Generator().manual_seed(rank)
    x, y = torch.randn(batch, 1024, generator=g), torch.randint(200, (batch,), generator=g)

    def loss_of(m: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(m(x), y)

    def by_itself() -> None:
        adam.zero_grad()
        loss_of(model).backward()
        adam.step()

    def write(times: list[float], alone: list[float], **more: object) -> None:
        if rank == 0:
            Path(out).write_text(json.dumps({"step": times[WARM:], "alone": alone, **more}))

    if how == "ddp":
        torch.distributed.init_process_group("gloo")
        alone = timed(by_itself, 2 * ALONE)[ALONE:]
        m = nn.parallel.DistributedDataParallel(model)

        def step() -> None:
            adam.zero_grad()
            loss_of(m).backward()
            adam.step()

        write(timed(step, WARM + count), alone)
        torch.distributed.destroy_process_group()
        return
    import perdure

    with perdure.start() as job:
        job.await_slots()
        alone = timed(by_itself, 2 * ALONE)[ALONE:]
        with perdure.ServerOptimizer(job, model, torch.optim.Adam(model.parameters(), 1e-4)) as p:

            def step() -> None:
                p.zero_grad()
                loss_of(model).backward()
                p.step()

            write(timed(step, WARM + count), alone)


def measure(how: str, processes: int, batch: int, count: int) -> dict[str, Any]:
    """Run the processes of one way. how: ddp, or a recovery strategy."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        if how != "ddp":
            launch = [sys.executable, "-m", "perdure", "launch", "--nproc", str(processes), "--servers=1", "-q"]
            launch += [f"--recovery={how}", f"--out={folder}/run"]
        own = [__file__, "--process", how, "--out", out, "--batch", str(batch), "--steps", str(count)]
        done = subprocess.run(
            [*launch, *own], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{how} failed:\n{done.stderr[-2000:]}")
        found = json.loads(Path(out).read_text())
        events = Path(folder, "run", "events.jsonl")
        found["checkpoints"] = events.read_text().count('"kind":"checkpoint"') if events.exists() else 0
        return found


def main() -> None:
    p = argparse.ArgumentParser(description="Steps of ServerOptimizer compared with DistributedDataParallel.")
    p.add_argument("--batch", type=int, nargs="+", default=[8, 64, 256])
    p.add_argument("--recovery", nargs="+", default=["none", "resend:auto"])
    p.add_argument("--processes", type=int, default=4)
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--process", help=argparse.SUPPRESS)
    p.add_argument("--out", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.process:
        process(a.process, a.batch[0], a.steps, a.out)
        return
    for batch in a.batch:
        ratios: dict[str, list[float]] = {how: [] for how in a.recovery}
        for _ in range(a.rounds):
            ddp = measure("ddp", a.processes, batch, a.steps)
            theirs, alone = statistics.median(ddp["step"]), statistics.median(ddp["alone"])
            print(f"batch {batch}: DDP {theirs * 1e3:.0f} ms, {1 - alone / theirs:.0%} of it communicating", flush=True)
            for how in a.recovery:
                ours = measure(how, a.processes, batch, a.steps)
                mean = statistics.mean(ours["step"])
                ratios[how].append(mean / statistics.mean(ddp["step"]))
                print(
                    f"  {how}: median {statistics.median(ours['step']) * 1e3:.0f} ms, mean {mean * 1e3:.0f} ms, "
                    f"{ours['checkpoints']} checkpoints; {ratios[how][-1]:.2f} of its mean",
                    flush=True,
                )
        for how, of in ratios.items():
            print(f"batch {batch}, {how}: {statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f}) of DDP's time")


if __name__ == "__main__":
    main()
