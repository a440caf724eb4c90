"""Asynchronous training with ServerOptimizer, in which no slot waits for another.

PERDURE_STORMS is the number of storms, and PERDURE_STORM_SEED the seed of the first one.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Cluster
from launched import Death, launch
from test_pages import BEGUN
from test_storms import FIRST, STORMS, agents_die

import perdure
from perdure import UsageError

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("torchdata")

ASYNC = ("--atomic-clocks", "--suspend-after=0s")

#: Three epochs on shuffled data. Each process appends its samples and its random state to a file.
TRAIN = """
import hashlib, json, os, sys, time
import numpy as np, torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
import perdure
torch.set_num_threads(1)
EPOCHS, SAMPLES = 3, 480
g = torch.Generator().manual_seed(7)
x = torch.randn(SAMPLES, 12, generator=g)
y = (x @ torch.randn(12, 3, generator=g)).argmax(1)
job = perdure.start()
torch.manual_seed(5 + job.slot)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
rank, of = job.share
data = list(zip(range(rank, SAMPLES, of), x[rank::of], y[rank::of]))
loader = StatefulDataLoader(data, batch_size=8, shuffle=True)
counts = job.table("counts", SAMPLES, dim=1, rule=perdure.Add())
log = open(f"{sys.argv[1]}.log{job.slot}", "a")
with perdure.ServerOptimizer(job, model, torch.optim.SGD(model.parameters(), 0.05), state=[loader]) as p:
    for epoch in job.epochs(EPOCHS):
        for ids, inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            counts.inc(ids.numpy(), np.ones((len(ids), 1), np.float32))
            state = hashlib.sha256(torch.get_rng_state().numpy()).hexdigest()
            print(json.dumps([epoch, sorted(ids.tolist()), state]), file=log, flush=True)
            time.sleep(0.004)
            p.step()
            p.zero_grad()
seen = counts.get_run(0, SAMPLES).reshape(-1)
p.export(f"{sys.argv[1]}.safetensors{job.slot}")
weights = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump({"seen": seen.tolist(), "hash": weights}, f)
"""


def steps_of(folder: Path, name: str) -> list[list[str]]:
    """Return the steps of each slot that a run has logged, without those that were repeated."""
    found = []
    for slot in range(2):
        lines = (folder / f"{name}.log{slot}").read_text().splitlines()
        found.append([line for i, line in enumerate(lines) if line not in lines[:i]])
    return found


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
@pytest.mark.parametrize("model", ["asp", "ssp:3", "essp:3"])
def test_storm(tmp_path: Path, model: str, seed: int) -> None:
    """Each sample counts once an epoch, and random numbers are those of an undisturbed run."""
    rng = random.Random(f"async {model} {seed}")
    recovery = rng.choice(
        ["resend:20", "resend:auto", "checkpoint:10", "chain:2", "chain:2,checkpoint:10", "stateless"]
    )
    kinds = ["worker:0", "worker:0", "worker:1", "worker:1", "server:0", "server:1", "coordinator"]
    if recovery == "chain:2":  # a second server must not die before the first one is replaced
        kinds.remove("server:1")
    faults = [f"--fault=kill:{rng.choice(kinds)}@clock:{rng.randrange(2, 90)}" for _ in range(6)]
    flags = [*ASYNC, f"--consistency={model}"]
    with agents_die(tmp_path / "train.py", rng):
        ends = launch(tmp_path, "storm", TRAIN, *flags, f"--recovery={recovery}", *faults)
    for end in ends:
        assert end["seen"] == [3.0] * 480, (recovery, faults)
    assert ends[0]["hash"] == ends[1]["hash"], (recovery, faults)
    launch(tmp_path, "calm", TRAIN, *flags)
    assert steps_of(tmp_path, "storm") == steps_of(tmp_path, "calm"), (recovery, faults)


#: Slot 0 writes its weights and a buffer 0.5 s after the other slot waits for them. Then each trains another number of
#: batches and adds another number to its buffers.
START = """
import json, sys, time
import torch
from torch import nn
import perdure
job = perdure.start()
model = nn.Linear(300, 2)
model.register_buffer("mean", torch.full((3,), 5.0))
model.register_buffer("small", torch.full((3,), 1.0, dtype=torch.bfloat16))
model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
model.register_buffer("count", torch.tensor(2**40))
with torch.no_grad():
    model.weight.fill_(1.0 - job.slot)
if job.slot == 0:
    time.sleep(0.5)
with perdure.ServerOptimizer(job, model, perdure.SGD(1.0)) as p:
    first = float(model.weight.sum())
    for _ in range(4 + 6 * job.slot):
        model(torch.ones(1, 300)).sum().backward()
        model.mean += 1 + 2 * job.slot
        model.count += 1 + job.slot
        p.step()
        p.zero_grad()
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump({"first": first, "weight": float(model.weight.sum()), "mean": model.mean.tolist(),
               "small": model.small.tolist(), "mask": str(model.mask.tolist()), "count": model.count.item()}, f)
p.export(f"{sys.argv[1]}.{job.slot}.safetensors")
"""


@pytest.mark.parametrize("model", ["asp", "ssp:2", "essp:2"])
def test_start_and_end(tmp_path: Path, model: str) -> None:
    """No slot starts without slot 0's weights, all train all of their data, and read the same model at the end."""
    of = launch(tmp_path, "run", START, *ASYNC, f"--consistency={model}", "--recovery=resend:20")
    assert of[0] == of[1] | {"first": of[0]["first"]}
    assert of[0]["first"] == 600.0  # slot 0's weights
    assert of[1]["first"] in range(-1200, 601, 300)  # and up to 4 updates of slot 0
    assert of[0]["weight"] == 600 * (1 - 14 / 2)  # 4 and 10 gradients of 1, each at half the rate
    assert of[0]["mean"] == [5 + (4 * 1 + 10 * 3) / 2] * 3
    assert of[0]["small"] == [1.0] * 3
    assert of[0]["mask"] == "[0.0, -inf]"
    assert of[0]["count"] >= 2**40 + 4
    exported = tmp_path / "exported.safetensors"
    subprocess.run([os.environ["PERDURE_BINARY"], "export", tmp_path / "run.run", "-o", exported], check=True)
    final = safetensors.load_file(exported)
    for slot in range(2):  # all have the same model, which is that of the servers
        own = safetensors.load_file(tmp_path / f"run.{slot}.safetensors")
        assert own.keys() == final.keys()
        assert all(torch.equal(own[name], final[name]) for name in own)


#: Slot 0 is done after 300 quick steps; slot 1 is slow. WIDTH is that of the model.
UNEQUAL = """
import json, sys, time, warnings
import torch
import perdure
warnings.simplefilter("ignore")
job = perdure.start()
model = torch.nn.Linear(WIDTH, 1, bias=False)
steps = 0
with perdure.ServerOptimizer(job, model, torch.optim.SGD(model.parameters(), 0.01), end="first") as p:
    for _ in range(300):
        if job.slot:
            time.sleep(0.2)
        model(torch.ones(1, WIDTH)).sum().backward()
        p.step()
        p.zero_grad()
        steps += 1
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump({"steps": steps, "end": job.end, "weights": model.weight.flatten()[:9].tolist()}, f)
"""


@pytest.mark.parametrize("width", [100, 1_000_000])  # updates of one part, and of several
def test_slow_slot_skips(tmp_path: Path, width: int) -> None:
    """If the job ends when its first slot is done, a slot that is far behind need not catch up."""
    program = UNEQUAL.replace("WIDTH", str(width)).replace("300", "300" if width == 100 else "60")
    of = launch(tmp_path, "run", program, *ASYNC, "--consistency=asp", "--recovery=resend:20")
    assert of[0]["end"] == of[1]["end"] >= of[0]["steps"]
    assert of[1]["steps"] < of[0]["steps"] / 2
    assert of[0]["weights"] == of[1]["weights"]


def test_one_slot_trains_like_torch(tmp_path: Path) -> None:
    x, y = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3

    def trained(server: bool) -> list[Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
        sgd = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01)

        def batches(step: Any, zero: Any) -> None:
            for at in range(0, 64, 8):
                torch.nn.functional.cross_entropy(model(x[at : at + 8]), y[at : at + 8]).backward()
                step()
                zero()

        if server:
            args = [*SMALL, *ASYNC]
            with (
                perdure.start(clocks=1000, consistency="asp", out=tmp_path / "run", args=args) as job,
                perdure.ServerOptimizer(job, model, sgd) as p,
            ):
                batches(p.step, p.zero_grad)
        else:
            batches(sgd.step, sgd.zero_grad)
        return list(model.state_dict().values())

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_program_of_the_page(tmp_path: Path) -> None:
    """The guide's program trains through kills."""
    page = (Path(__file__).parents[3] / "docs" / "guide" / "asynchronous.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^python (-m perdure launch .*) train\.py$", page, re.MULTILINE)
    end = f"\nprint('trained', job.now)\np.export({str(tmp_path / 'm')!r} + str(job.slot))\n"
    (tmp_path / "train.py").write_text(BEGUN + program + end)
    kills = [f"--fault=kill:{of}" for of in ("worker:1@clock:5", "server:*@clock:10+1s", "worker:0@clock:15")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    flags = ["-q", "--out", str(tmp_path / "run"), *SMALL, *kills]
    subprocess.run(
        [sys.executable, *command.split(), *flags, str(tmp_path / "train.py")],
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    models = [safetensors.load_file(tmp_path / f"m{slot}") for slot in range(4)]
    assert all(torch.equal(of["weight"], models[0]["weight"]) for of in models)


def test_replacement_without_position(tmp_path: Path) -> None:
    """A replacement process warns if its program saves no position in the data."""
    of = Cluster(
        tmp_path, "--workers", "1", "--servers", "1", "--consistency", "asp", "--recovery", "stateless", *ASYNC
    )

    def step(p: perdure.ServerOptimizer, linear: Any) -> None:
        linear(torch.ones(1, 2)).sum().backward()
        p.step()

    linear = torch.nn.Linear(2, 2)
    with pytest.raises(Death), of.join(0) as job:
        step(perdure.ServerOptimizer(job, linear, perdure.SGD(0.1)), linear)
        raise Death
    linear = torch.nn.Linear(2, 2)
    with of.join(0) as job:
        p = perdure.ServerOptimizer(job, linear, perdure.SGD(0.1))
        with pytest.warns(RuntimeWarning, match="lists no loader"):
            step(p, linear)
    of.end()


def test_refused(tmp_path: Path) -> None:
    linear = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(linear.parameters(), 0.1)
    flags = ("--workers", "1", "--servers", "1", "--clocks", "50")
    for model, more in (("asp", ASYNC), ("ssp:2", ()), ("essp:2", ASYNC[:1]), ("vap:0.1", ()), ("bsp", ())):
        (tmp_path / model).mkdir()
        of = Cluster(tmp_path / model, *flags, "--consistency", model, "--recovery", "resend:20", *more)
        with of.join(0) as job:
            if model == "ssp:2":
                with pytest.raises(UsageError, match="--atomic-clocks"):
                    perdure.ServerOptimizer(job, linear, sgd)
            elif model == "vap:0.1":
                with pytest.raises(UsageError, match="choose essp:S"):
                    perdure.ServerOptimizer(job, linear, sgd)
            elif model == "essp:2":
                with pytest.raises(UsageError, match="--suspend-after 0s"):
                    perdure.ServerOptimizer(job, linear, sgd)
            elif model == "bsp":
                with pytest.raises(UsageError, match="rate_scale"):
                    perdure.ServerOptimizer(job, linear, sgd, rate_scale=0.5)
            else:
                with pytest.raises(UsageError, match="ServerOptimizer"):
                    perdure.DataParallel(job, linear, sgd)
                with pytest.raises(UsageError, match="choose bsp"):
                    perdure.DiLoCo(job, linear, sgd)
                with pytest.raises(UsageError, match=r"job\.share"):
                    perdure.Sampler(job, 10, batch=2)
                with pytest.raises(UsageError, match="weighted"):
                    perdure.ServerOptimizer(job, linear, sgd, weighted=True)
                for scale in (0.0, -1.0, float("nan"), float("inf")):
                    with pytest.raises(UsageError, match="rate_scale"):
                        perdure.ServerOptimizer(job, linear, sgd, rate_scale=scale)
                synced = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2))
                with pytest.raises(UsageError, match="SyncBatchNorm"):
                    perdure.ServerOptimizer(job, synced, perdure.SGD(0.1))
                linear.register_buffer("mean", torch.zeros(2))
                with perdure.ServerOptimizer(job, linear, sgd) as p:
                    was = linear.weight.detach().clone()
                    linear(torch.ones(1, 2)).sum().backward()
                    p.clip_grad_norm_(1e-3)
                    p.step()
                    assert 0 < (linear.weight - was).abs().max() < 2e-4
                    linear.mean.fill_(torch.nan)
                    with pytest.raises(perdure.NonFinite, match="mean"):
                        p.step()
                    linear.mean.zero_()
        of.end()


def test_momentum_warns(tmp_path: Path) -> None:
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--consistency=asp", "--recovery=resend:20", *ASYNC)
    with of.join(0) as job, pytest.warns(RuntimeWarning, match="momentum under asp adds up"):
        perdure.ServerOptimizer(job, torch.nn.Linear(2, 2), perdure.Momentum(0.1))
    of.end()
