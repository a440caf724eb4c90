"""How long an outer step of DiLoCo takes, compared with the time that its bytes take by themselves.

Two processes train a model of 9.9 million parameters, or with --large of 128 million, with AdamW. In an outer step each
of them sends and receives the weights and saves the optimizer's state, twice as large. By themselves, the weights of
both take as long as over one Unix socket, and the states as long as a file on the disk.

With --overlap the exchange runs while the next steps compute. Then a round has two costs: the time in which the program
stands, and the extra time of the steps during the exchange, since they share processors with it.

    python outer.py --large
    python outer.py --large --inner 8 --overlap 6
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
from pathlib import Path

import torch
from deaths import written
from steps import model_of
from torch import nn

import perdure
from perdure._agent import binary

_WARM = 2  # outer steps until memory that is used again and again has been used once


def process(out: str, outer: int, inner: int, overlap: int, large: bool) -> None:
    """One of the processes. It writes the seconds of its inner steps, and those that each outer step costs."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = model_of(large)
    adam = torch.optim.AdamW(model.parameters(), 1e-4)
    x, y = torch.randn(8, 1024), torch.randint(200, (8,))
    steps: list[float] = []  # seconds, without those that the outer steps cost
    waited: list[float] = []  # the latter
    with perdure.start() as job, perdure.DiLoCo(job, model, adam, sync_every=inner, overlap=overlap) as d:
        for _ in range(inner * (_WARM + outer) + overlap):
            begun, before = time.monotonic(), d.waited
            adam.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            adam.step()
            waited.append(d.waited - before)
            steps.append(time.monotonic() - begun - waited[-1])
    # A round is the steps from the beginning of one outer step to that of the next: those of its window come first.
    first = _WARM * inner
    rounds = [range(first + inner * i, first + inner * (i + 1)) for i in range(outer)]
    own = [steps[i] for r in rounds for i in r[overlap:]]
    standing = [waited[r[0] - 1] + sum(waited[i] for i in r[:-1]) for r in rounds]
    window = [steps[i] for r in rounds for i in r[:overlap]]
    count = sum(p.numel() for p in model.parameters())
    found = {"parameters": count, "own": own, "standing": standing, "window": window}
    Path(f"{out}.{job.slot}").write_text(json.dumps(found))


def socket_speed(folder: str) -> float:
    """Return the bytes per second of a raw exchange over a Unix socket."""
    command = [binary(), "bench", "moves", "--op=pull", "--size=40MB", "--socket=unix", "--conns=1", "--rounds=5"]
    subprocess.run([*command, f"--json={folder}/raw.json"], capture_output=True, check=True)
    (row,) = json.loads(Path(folder, "raw.json").read_text())
    return float(row["raw_gb_per_s"]) * 1e9


def measure(a: argparse.Namespace) -> None:
    """Train once, and print the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "perdure", "launch", "--nproc=2", "--servers=1", "-q", f"--out={folder}/run"]
        own = [__file__, "--process", f"{folder}/out", "--outer", str(a.outer), "--inner", str(a.inner)]
        own.append(f"--overlap={a.overlap}")
        done = subprocess.run(
            [*launch, f"--recovery={a.recovery}", *own, *["--large"] * a.large],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"it failed:\n{done.stderr[-2000:]}")
        found = [json.loads(Path(f"{folder}/out.{slot}").read_text()) for slot in range(2)]
        weights = 4 * found[0]["parameters"]
        raw = 4 * weights / socket_speed(folder) + written(folder, 4 * weights)
    step = statistics.median(s for of in found for s in of["own"])
    outer = [s for of in found for s in of["standing"]]
    middle = statistics.median(outer)
    slowed = a.overlap * (statistics.mean([s for of in found for s in of["window"]]) - step) if a.overlap else 0.0
    print(
        f"{weights // 4 / 1e6:.1f} M parameters: a step {step:.2f} s, standing in an outer step {middle:.2f} s "
        f"({min(outer):.2f} to {max(outer):.2f}), its bytes {raw:.2f} s: {middle / raw:.2f}; steps of the window are "
        f"{slowed:.2f} s longer; with a step of 2.5 s and sync_every=100, {250 / (250 + middle + slowed):.3f} of the "
        "steps remain",
        flush=True,
    )


def main() -> None:
    p = argparse.ArgumentParser(description="Outer steps of DiLoCo compared with the transfer of their bytes.")
    p.add_argument("--large", action="store_true")
    p.add_argument("--recovery", default="resend:auto")
    p.add_argument("--outer", type=int, default=6)
    p.add_argument("--inner", type=int, default=3)
    p.add_argument("--overlap", type=int, default=0)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--process", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.process:
        process(a.process, a.outer, a.inner, a.overlap, a.large)
        return
    for _ in range(a.rounds):
        measure(a)


if __name__ == "__main__":
    main()
