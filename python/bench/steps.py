"""The time of a step of DataParallel or ServerOptimizer, compared with DistributedDataParallel over gloo.

Four processes train a model of 9.9 million parameters, or with --large two a model of 128 million. DataParallel's loop
has AdamW, clipping and a schedule; ServerOptimizer's has Adam.

    python steps.py --batch 64 256 --recovery resend:20
    python steps.py --server-optimizer --batch 8 64 256 --recovery none resend:auto

All processes share this machine, and so do Perdure's servers. A step without communication is timed in the same
processes, before: what a step takes more is what communication costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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


def model_of(large: bool) -> nn.Sequential:
    """Return a network of 9.9 million parameters, or of 128 million."""
    wide = 8192 if large else 2048
    return nn.Sequential(
        nn.Linear(1024, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide * 3 // 4 + 64),
        nn.ReLU(), nn.Linear(wide * 3 // 4 + 64, 200),
    )  # fmt: skip


def timed(step: Callable[[], None], count: int) -> list[float]:
    """Seconds that each of some steps took."""
    found = []
    for _ in range(count):
        begun = time.monotonic()
        step()
        found.append(time.monotonic() - begun)
    return found


def process(how: str, batch: int, count: int, out: str, on_servers: bool, large: bool) -> None:
    """One of the processes. Rank 0 writes what it has seen."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = model_of(large)
    adam: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    def start() -> None:
        nonlocal adam, schedule
        adam = (torch.optim.Adam if on_servers else torch.optim.AdamW)(model.parameters(), 1e-4)
        schedule = torch.optim.lr_scheduler.LinearLR(adam)

    start()
    rank = int(os.environ["RANK"])
    g = torch.Generator().manual_seed(rank)
    x, y = torch.randn(batch, 1024, generator=g), torch.randint(200, (batch,), generator=g)

    def loss_of(m: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(m(x), y)

    def trained(m: nn.Module) -> None:
        adam.zero_grad()
        loss_of(m).backward()
        if not on_servers:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        if not on_servers:
            schedule.step()

    def by_itself() -> None:
        trained(model)

    def write(times: list[float], alone: list[float], **more: object) -> None:
        if rank == 0:
            Path(out).write_text(json.dumps({"step": times[WARM:], "alone": alone, **more}))

    if how == "ddp":
        torch.distributed.init_process_group("gloo")
        alone = timed(by_itself, 2 * ALONE)[ALONE:]
        m = nn.parallel.DistributedDataParallel(model)

        write(timed(lambda: trained(m), WARM + count), alone)
        torch.distributed.destroy_process_group()
        return
    import perdure

    with perdure.start() as job:
        job.await_slots()
        alone = timed(by_itself, 2 * ALONE)[ALONE:]
        if not on_servers:
            start()  # the optimizers of all slots must be equal
            with perdure.DataParallel(job, model, adam, shared=[schedule]) as own:
                steps = iter(own.steps(WARM + count + 1))
                write(timed(lambda: (next(steps), by_itself()), WARM + count), alone)  # type: ignore[arg-type,return-value]
            return
        with perdure.ServerOptimizer(job, model, torch.optim.Adam(model.parameters(), 1e-4)) as p:

            def step() -> None:
                p.zero_grad()
                loss_of(model).backward()
                p.step()

            write(timed(step, WARM + count), alone)


def measure(how: str, batch: int, a: argparse.Namespace) -> dict[str, Any]:
    """Run the processes of one way. how: ddp, or a recovery strategy."""
    processes = 2 if a.large else a.processes
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        if how != "ddp":
            launch = [sys.executable, "-m", "perdure", "launch", "--nproc", str(processes), "--servers=1", "-q"]
            launch += [f"--recovery={how}", f"--out={folder}/run"]
        own = [__file__, "--process", how, "--out", out, "--batch", str(batch), "--steps", str(a.steps)]
        own += ["--server-optimizer"] * a.server_optimizer + ["--large"] * a.large
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*launch, *own], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{how} failed:\n{done.stderr[-2000:]}")
        found = json.loads(Path(out).read_text())
        events = Path(folder, "run", "events.jsonl")
        found["processor"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found["checkpoints"] = events.read_text().count('"kind":"checkpoint"') if events.exists() else 0
        return found


def main() -> None:
    p = argparse.ArgumentParser(description="Steps of DataParallel compared with DistributedDataParallel.")
    p.add_argument("--batch", type=int, nargs="+", default=[8, 64, 256])
    p.add_argument("--recovery", nargs="+", default=["resend:20"])
    p.add_argument("--server-optimizer", action="store_true")
    p.add_argument("--large", action="store_true")
    p.add_argument("--processes", type=int, default=4)
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--process", help=argparse.SUPPRESS)
    p.add_argument("--out", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.process:
        process(a.process, a.batch[0], a.steps, a.out, a.server_optimizer, a.large)
        return
    for batch in a.batch:
        ratios: dict[str, list[float]] = {how: [] for how in a.recovery}
        processor: dict[str, list[float]] = {how: [] for how in a.recovery}
        for _ in range(a.rounds):
            ddp = measure("ddp", batch, a)
            theirs, alone = statistics.median(ddp["step"]), statistics.median(ddp["alone"])
            print(f"batch {batch}: DDP {theirs * 1e3:.0f} ms, {1 - alone / theirs:.0%} of it communicating", flush=True)
            for how in a.recovery:
                ours = measure(how, batch, a)
                mean = statistics.mean(ours["step"])
                ratios[how].append(mean / statistics.mean(ddp["step"]))
                processor[how].append(ours["processor"] / ddp["processor"])
                print(
                    f"  {how}: median {statistics.median(ours['step']) * 1e3:.0f} ms, mean {mean * 1e3:.0f} ms, "
                    f"{ours['checkpoints']} checkpoints; {ratios[how][-1]:.2f} of its mean",
                    flush=True,
                )
        for how, of in ratios.items():
            used = statistics.median(processor[how])
            print(
                f"batch {batch}, {how}: {statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f}) of DDP's time, "
                f"{used:.2f} of its processor seconds with imports and warm-up"
            )


if __name__ == "__main__":
    main()
