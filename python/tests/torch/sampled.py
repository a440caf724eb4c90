"""Training programs with a Sampler in real processes, whose number of slots may change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conftest import ROOT, SMALL

#: The arguments are the method, the prefix of the files to write, and settings as JSON. Tables record which clock and
#: slot trained a sample. Each record is part of the update of its clock, so only clocks that count leave one.
PROGRAM = """
import hashlib, json, os, signal, sys, time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader
import perdure

torch.set_num_threads(1)
how, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
length, epochs = given["length"], given["epochs"]
x = torch.randn(length, 8, generator=torch.Generator().manual_seed(7))
data = list(zip(range(length), x, x.sin().sum(1, keepdim=True)))
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
if how == "own":
    model.register_parameter("odd", nn.Parameter(torch.ones(3)))
job = perdure.start()
torch.manual_seed(100 + job.slot)
records = how != "drafts"  # a program's own updates keep drafts from being written
if records:
    counts = job.table("counts", epochs * length, dim=1, rule=perdure.Add())
    clocks = job.table("clocks", epochs * length, dim=2, rule=perdure.Set())
sampler = perdure.Sampler(job, length, given["batch"], **given.get("settings", {}))
workers = given.get("workers", 0)
loader = sampler.loader(DataLoader(data, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 1))


def pause(clock):
    if clock in given.get("pauses", []):
        open(f"{out}.at.{clock}", "w").close()
        while not os.path.exists(f"{out}.continue.{clock}"):
            time.sleep(0.02)


def die(clock, step):
    mark = f"{out}.died.{job.slot}.{clock}.{step}"
    if [job.slot, clock, step] in given["deaths"] and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def record(epoch, ids):
    clock = job._now().clock
    pause(clock)
    die(clock, getattr(trainer, "_steps", 0))
    if records:
        rows = epoch * length + ids.numpy()
        counts.inc(rows, np.ones((len(rows), 1), np.float32))
        clocks.inc(rows, np.tile(np.array([[clock, job.slot]], np.float32), (len(rows), 1)))


class Ends:
    n = 0  # epochs that have ended

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


if how == "parallel":
    trainer = perdure.ServerOptimizer(job, model, torch.optim.Adam(model.parameters(), 1e-2))
elif how == "own":
    adam = torch.optim.AdamW(model.parameters(), 1e-2)
    decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.99)
    ends = Ends()
    trainer = perdure.DataParallel(job, model, adam, shared=[decay, ends], copy=given.get("copy"))
else:
    inner = torch.optim.AdamW(model.parameters(), 1e-2)
    trainer = perdure.DiLoCo(job, model, inner, sync_every=given.get("sync_every", 4))
seen, found = [], {}
with trainer:
    for epoch in job.epochs(epochs):
        for ids, a, b in trainer.batches(loader) if how == "own" else loader:
            model.zero_grad(set_to_none=how != "own")
            if how == "own":
                record(epoch, ids)
                odd = model.odd.square().sum() if job.now % 2 else 0.0  # otherwise it has a gradient of zero, or none
                (nn.functional.mse_loss(model(a), b) + odd).backward()
                adam.step()
                decay.step()
                continue
            nn.functional.mse_loss(model(a), b).backward()
            record(epoch, ids)
            trainer.step() if how == "parallel" else inner.step()
        seen.append(epoch)
        if how == "own":
            ends.n += 1
            for group in adam.param_groups:
                group["weight_decay"] *= 0.5
    if how in ("diloco", "drafts") and trainer._steps:
        trainer.sync()  # the last record
    if records and job.share.rank == 0:
        found = {"counts": counts.get_run(0, epochs * length).ravel().tolist(),
                 "clocks": clocks.get_run(0, epochs * length).tolist()}
hash_of = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()
assert how != "own" or job._now().left or ends.n == epochs, ends.n
with open(f"{out}.{job.slot}", "w") as f:
    json.dump({"hash": hash_of, "epochs": seen, "end": job.end} | found, f)
"""


class Trained(NamedTuple):
    """The result of a training."""

    hash: str  # of the model
    counts: list[float]  # how often each sample counted, by epoch and number
    clocks: list[tuple[int, int]]  # the clock and the slot that trained each sample

    def once(self) -> bool:
        """Reports whether each sample counted once per epoch."""
        return set(self.counts) == {1.0}


def train(
    folder: Path,
    name: str,
    how: str,
    *flags: str,
    slots: int = 2,
    scale: dict[int, tuple[int, int]] | None = None,
    deaths: Sequence[tuple[int, int, int]] = (),
    **given: Any,
) -> Trained:
    """Train in real processes.

    Args:
        flags: Further flags of ``perdure up``.
        slots: The number of slots at the start.
        scale: For a clock at which the program pauses, the new number of slots and the clock of the change.
        deaths: Slots, clocks and steps since the last outer one in which a process kills itself, before its step.
        given: The settings of the program.
    """
    program, out, run = folder / "train.py", folder / name, folder / f"{name}.run"
    program.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", str(slots), "--servers", "2", *SMALL, "-q"]
    given |= {"pauses": list(scale or {}), "deaths": deaths}
    process = subprocess.Popen(
        [*command, "--out", str(run), *flags, str(program), how, str(out), json.dumps(given)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for clock, (number, at) in (scale or {}).items():
            while not Path(f"{out}.at.{clock}").exists():
                assert process.poll() is None, failure(process, run)
                time.sleep(0.05)
            subprocess.run(
                [str(ROOT / "bin" / "perdure"), "scale", "--run", str(run), str(number), "--at", str(at)],
                check=True,
                capture_output=True,
            )
            Path(f"{out}.continue.{clock}").touch()
        process.wait(timeout=300)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0, failure(process, run)
    assert len(list(folder.glob(f"{name}.died.*"))) == len(deaths)
    assert "findings" not in json.loads((run / "summary.json").read_text())  # such as untrained data of a slot
    results = [json.loads(Path(f"{out}.{slot}").read_text()) for slot in range(3 if scale else slots)]
    results = results[:slots]  # without a slot that has left
    assert len({of["hash"] for of in results}) == 1
    return Trained(
        results[0]["hash"],
        results[0].get("counts", []),
        [(int(clock), int(slot)) for clock, slot in results[0].get("clocks", [])],
    )


def failure(process: subprocess.Popen[str], run: Path) -> str:
    assert process.stdout is not None
    process.kill()
    logs = sorted((run / "logs").glob("worker-*.log"))
    return process.stdout.read() + "".join(f"\n{log.name}:\n{log.read_text()[-3000:]}" for log in logs)
