"""The memory of a process of DataParallel or DiLoCo and of its agent, in units of the weights W in float32.

One process trains a multilayer perceptron with AdamW, which takes 4 W itself and up to twice its largest parameter
during a step. Both processes are sampled from the fourth step on, at least 25 s after the start, and the sample with
the largest sum is printed. Shared memory counts half in each (proportional set size).

    python memory.py --recovery checkpoint:20 resend:auto
    python memory.py --large --steps 16
    python memory.py --recovery resend:auto --diloco sync_every=4 --diloco sync_every=4,overlap=3,compress=int8

The large model has 128 million parameters and ReLU. Most of its gradients are zeros with such a batch, and are packed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from steps import model_of
from torch import nn

EVERY = 0.02  # seconds between two samples
WARM = 3  # steps before the samples that count
FREED = 25  # seconds before them: by then the agent has given back the memory for the initial weights


def sizes_of(pid: int) -> dict[str, int]:
    """Return the proportional set size of a process, by kind: its own memory, shared with the other one, and files."""
    sizes, kind = {"own": 0, "shared": 0, "files": 0}, "own"
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := re.match(r"[0-9a-f]+-[0-9a-f]+ (?:\S+ +){4}(.*)", line):
            name = found[1]
            kind = "shared" if "memfd:perdure" in name else "files" if name.startswith("/") else "own"
        elif line.startswith("Pss:"):
            sizes[kind] += int(line.split()[1]) << 10
    return sizes


def process(a: argparse.Namespace) -> None:
    """Train, and write the largest sample."""
    import perdure

    torch.set_num_threads(1)
    torch.manual_seed(3)
    before = sizes_of(os.getpid())
    layers = [m for _ in range(a.layers) for m in (nn.Linear(a.width, a.width), nn.Tanh())]
    model = model_of(large=True) if a.large else nn.Sequential(*layers)
    weights = sum(4 * p.numel() for p in model.parameters())
    adam = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(16, 1024 if a.large else a.width)
    largest: list[dict[str, int]] = []
    over = threading.Event()

    def sample(pids: list[int]) -> None:
        nonlocal largest
        while not over.wait(EVERY):
            now = [sizes_of(pid) for pid in pids]
            now[0] = {kind: size - before[kind] for kind, size in now[0].items()}
            if warm and sum(map(total, now)) > sum(map(total, largest)):
                largest = now

    def steps(of: perdure.DataParallel | perdure.DiLoCo) -> Iterable[int]:
        return of.steps(a.steps) if isinstance(of, perdure.DataParallel) else range(a.steps)

    def training(job: perdure.Job) -> perdure.DataParallel | perdure.DiLoCo:
        if not a.diloco:
            return perdure.DataParallel(job, model, adam)
        how = dict(of.split("=", 1) for of in a.diloco[0].split(","))
        numbers = {name: int(how.pop(name)) for name in ("sync_every", "overlap") if name in how}
        return perdure.DiLoCo(job, model, adam, **numbers, **how)

    with perdure.start() as job, training(job) as of:
        warm, begun = False, time.monotonic()
        sampler = threading.Thread(target=sample, args=([os.getpid(), job._agent.process.pid],))
        sampler.start()
        try:
            for step in steps(of):
                if step == WARM:
                    time.sleep(max(0, FREED - (time.monotonic() - begun)))
                warm = step >= WARM
                model(x).square().mean().backward()
                adam.step()
                adam.zero_grad()
        finally:
            over.set()
            sampler.join()
    Path(a.out).write_text(json.dumps({"weights": weights, "largest": largest, "before": total(before)}))


def total(sizes: dict[str, int]) -> int:
    return sizes["own"] + sizes["shared"]


def measure(how: str, diloco: str | None, a: argparse.Namespace) -> None:
    """Print the memory under a recovery strategy, and with DiLoCo's arguments if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        launch = [sys.executable, "-m", "perdure", "launch", "--nproc=1", "--servers=1", "-q"]
        launch += [f"--recovery={how}", f"--out={folder}/run", __file__, "--out", out]
        launch += [f"--{name}={getattr(a, name)}" for name in ("layers", "width", "steps")] + ["--large"] * a.large
        if diloco is not None:
            launch += [f"--diloco={diloco}"]
        done = subprocess.run(launch, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{how} failed:\n{done.stderr[-2000:]}")
        found = json.loads(Path(out).read_text())
    weights, (program, agent) = found["weights"], found["largest"]
    what = how if diloco is None else f"{how} DiLoCo {diloco}"
    print(
        f"{what}: {(total(program) + total(agent)) / weights:.2f} W of {weights / 1e6:.0f} MB; "
        f"program {program['own'] / weights:.2f}, agent {agent['own'] / weights:.2f}, "
        f"shared {(program['shared'] + agent['shared']) / weights:.2f}; "
        f"and {found['before'] / 1e6:.0f} MB of the program before the model exists",
        flush=True,
    )


def main() -> None:
    p = argparse.ArgumentParser(description="The memory of a process of DataParallel or DiLoCo and of its agent.")
    p.add_argument("--recovery", nargs="+", default=["checkpoint:20", "resend:auto"])
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--width", type=int, default=1100)
    p.add_argument("--large", action="store_true")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument(
        "--diloco",
        action="append",
        metavar="NAME=VALUE,...",
        help="measure DiLoCo with these arguments: sync_every, overlap, compress, compress_weights",
    )
    p.add_argument("--out", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.out:
        process(a)
        return
    for how in a.recovery:
        for diloco in a.diloco or [None]:
            measure(how, diloco, a)


if __name__ == "__main__":
    main()
