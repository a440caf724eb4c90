"""Step time and memory of two islands, compared with the same ranks in one group of DDP or FSDP2 over gloo.

The islands use DiLoCo, or with `--each-step` DataParallel.

Each rank trains a multilayer perceptron with AdamW on one thread. The rounds alternate. A step's time is the mean over
`--steps` steps with their outer steps, after a warm-up; that of the slowest rank counts. Memory is the proportional set
size after the last step, in units of the weights in float32, of all ranks of an island, or of a group of as many ranks.

    python islands.py --inside ddp fsdp --width 512 --rounds 3
    python islands.py --inside ddp fsdp --width 512 --rounds 3 --each-step
    python islands.py --inside ddp fsdp --width 2048 --rounds 1 --memory
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from memory import sizes_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def process(a: argparse.Namespace) -> None:
    """Train on a rank, and write its figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(a.width, a.width), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(a.width, 10))
    if a.inside[0] == "fsdp":
        for layer in layers:
            fully_shard(layer)
        net: nn.Module = fully_shard(model)
    else:
        net = DistributedDataParallel(model)
    inner = torch.optim.AdamW(net.parameters(), 1e-4)
    x, y = torch.randn(a.batch, a.width), torch.randint(0, 10, (a.batch,))
    slot, agent = 0, 0
    training: Any = contextlib.nullcontext()
    if a.island:
        import perdure

        job = perdure.start()
        slot, agent = job.slot, getattr(getattr(job._agent, "process", None), "pid", 0)
        if a.each_step:
            training = perdure.DataParallel(job, net, inner)
        else:
            training = perdure.DiLoCo(job, net, inner, sync_every=a.sync_every)

    def steps(count: int, before: int = 0) -> float:
        begun = time.perf_counter()
        for _ in training.steps(before + count) if a.island and a.each_step else range(count):
            inner.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            inner.step()
        return (time.perf_counter() - begun) / count

    with training:
        steps(a.sync_every)
        dist.barrier()
        taken = steps(a.steps, a.sync_every)
        memory = sizes_of(os.getpid())
        held = sizes_of(agent) if agent else {}
        dist.barrier()
    said = {
        "step": taken,
        "slot": slot,
        "memory": memory["own"] + memory["shared"],
        "agent": held.get("own", 0) + held.get("shared", 0),
        "weights": sum(4 * p.numel() for p in model.parameters()),
    }
    Path(a.out, f"{slot}.{dist.get_rank()}").write_text(json.dumps(said))


def train(a: argparse.Namespace, inside: str, ranks: int, island: bool) -> list[dict[str, Any]]:
    """Train with one method. Return the figures of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        if island:
            of = ["perdure", "launch", "--nproc", str(2 * ranks), "--nproc-per-learner", str(ranks), "-q"]
            of += ["--servers", "1", "--recovery", "resend:auto", "--out", f"{folder}/run"]
        else:
            of = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        settings = ["--each-step"] * a.each_step + [
            f"--width={a.width}",
            f"--batch={a.batch}",
            f"--steps={a.steps}",
            f"--sync-every={a.sync_every}",
        ]
        subprocess.run(
            [sys.executable, "-m", *of, __file__, "--out", folder, "--inside", inside, *settings]
            + (["--island"] if island else []),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return [json.loads(file.read_text()) for file in sorted(Path(folder).glob("[0-9].[0-9]"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", nargs="+", choices=("ddp", "fsdp"), default=["ddp", "fsdp"])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sync-every", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each-step", action="store_true", help="use DataParallel, which averages in each step")
    parser.add_argument("--memory", action="store_true", help="compare an island with a group of two ranks")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--island", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.out:
        process(a)
        return
    for inside in a.inside:
        taken: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(a.rounds):
            for island in (False, True):
                of = train(a, inside, 2 if island or a.memory else 4, island)
                taken[island].append(max(o["step"] for o in of))
                unit, first = of[0]["weights"], [o for o in of if o["slot"] == 0]
                ranks = [round(o["memory"] / unit, 2) for o in first]
                agent = sum(o["agent"] for o in first) / unit
                print(inside, "islands" if island else "group", f"{1e3 * taken[island][-1]:.1f} ms; memory", end=" ")
                print(ranks, f"agent {agent:.2f}, of {unit / 2**20:.1f} MiB", flush=True)
        if not a.memory:
            pairs = [there / here for here, there in zip(taken[False], taken[True], strict=True)]
            print(inside, f"islands/group: median {statistics.median(pairs):.2f}", [round(p, 2) for p in pairs])


if __name__ == "__main__":
    main()
