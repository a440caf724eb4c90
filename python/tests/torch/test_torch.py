"""Tests with PyTorch, which `make check-torch` installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL

import perdure

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

#: A model with every kind of state: buffers, random numbers, a position in the data. The arguments are the method, the
#: file for the model's hash, and the number of steps.
TRAIN = """
import hashlib, os, sys
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
torch.set_num_threads(1)
how, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
g = torch.Generator().manual_seed(7)
x = torch.randn(4096, 12, generator=g)
y = (x @ torch.randn(12, 3, generator=g)).argmax(1)
ids = torch.arange(4096)
torch.manual_seed(5 + rank)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
loader = StatefulDataLoader(list(zip(ids[rank::world].tolist(), x[rank::world], y[rank::world])), batch_size=16)


def batches():
    while True:
        yield from loader


def loss_of(batch):
    return nn.functional.cross_entropy(model(batch[1]), batch[2])
"""

PERDURE = (
    TRAIN
    + """
import perdure
if how in ("diloco", "mix"):
    perdure.job._PIECE = 3000  # its state goes to the store in pieces
job = perdure.start()
counts = job.table("counts", 4096, dim=1, rule=perdure.Add())
if how == "own":

    class Seen:
        def __init__(self):
            self.of = torch.zeros(4096)

        def state_dict(self):
            return {"of": self.of}

        def load_state_dict(self, state):
            self.of = state["of"]

    adam = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    loader = StatefulDataLoader(loader.dataset, batch_size=16, shuffle=True)
    own, data = Seen(), batches()
    with perdure.DataParallel(job, model, adam, shared=[schedule], state=[loader, own], copy=True) as p:
        for _ in p.steps(steps):
            batch = next(data)
            own.of[batch[0]] += 1
            loss_of(batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            schedule.step()
            adam.zero_grad()
    total = own.of[rank::world]
elif how == "parallel":
    adam = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-3)
    with perdure.ServerOptimizer(job, model, adam, state=[loader]) as p:
        for batch in batches():
            if job.now > steps:
                break
            loss_of(batch).backward()
            counts.inc(batch[0].numpy(), torch.ones(len(batch[0]), 1).numpy())
            p.step()
            p.zero_grad()
        total = counts.get_run(0, 4096)
else:
    inner = torch.optim.AdamW(model.parameters(), 1e-2)
    tokens = perdure.Count()
    weights = tokens if how == "drafts" else lambda: tokens()  # whose counting is in no draft
    overlaps = {
        "overlap": {"overlap": 2},
        "mix": {"overlap": 4, "mix": 0.5},
        "int8": {"compress": "int8", "compress_weights": "bf16"},
        "2bit": {"compress": "2bit"},
        "both": {"overlap": 3, "compress": "2bit", "compress_weights": "int8"},
    }.get(how, {})
    with perdure.DiLoCo(job, model, inner, sync_every=5, weights=weights, state=[loader], **overlaps) as d:
        for batch in batches():
            if job.now > steps:
                break
            inner.zero_grad()
            loss_of(batch).backward()
            tokens.add(len(batch[0]))
            if how != "drafts":
                counts.inc(batch[0].numpy(), torch.ones(len(batch[0]), 1).numpy())
            inner.step()
        total = counts.get_run(0, 4096)
h = hashlib.sha256()
for name, v in model.state_dict().items():
    h.update(v.numpy().tobytes())
seen = 16 * steps * world * {"parallel": 1, "drafts": 0, "own": 1 / world}.get(how, 5)
assert total.sum() == seen and total.max() - total.min() <= 1, (total.sum(), seen, total.min(), total.max())
with open(f"{out}.{rank}", "w") as f:
    f.write(h.hexdigest())
"""
)


def launch(folder: Path, name: str, how: str, *flags: str, steps: int = 60) -> list[str]:
    """Train with two processes by one of the methods, and return the hashes of their models."""
    program, out = folder / "train.py", folder / name
    program.write_text(PERDURE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--servers", "2", "--clocks", "1000"]
    done = subprocess.run(
        [*command, *SMALL, "-q", "--out", f"{out}.run", *flags, str(program), how, str(out), str(steps)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (folder / f"{name}.run" / "logs" / "worker-0.log").read_text()
    return [(folder / f"{name}.{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("how", "recovery"),
    [
        ("parallel", "resend:20"),
        ("diloco", "resend:20"),
        ("overlap", "resend:20"),
        ("mix", "checkpoint:10"),
        ("int8", "chain:2"),
        ("both", "resend:20"),
        ("parallel", "checkpoint:10"),
    ],
)
def test_same_model_through_kills(tmp_path: Path, how: str, recovery: str) -> None:
    calm = launch(tmp_path, "calm", how)
    kills = ("worker:0@clock:9", "server:0@clock:20", "worker:1@clock:30", "coordinator@clock:40", "worker:0@clock:50")
    storm = launch(tmp_path, "storm", how, "--recovery", recovery, *(f"--fault=kill:{kill}" for kill in kills))
    assert calm == storm
    if how == "diloco":  # each process has its own buffers and dropout until the outer step
        assert (tmp_path / "storm.run" / "events.jsonl").read_text().count('"fault"') >= len(kills)


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_nobody_is_healthy(tmp_path: Path, how: str) -> None:
    """All learners die at the same time, and one dies again during its restart.

    In systems where a restarted learner copies a peer's weights, those of a fresh process could spread to all. Here the
    weights come from the servers.
    """
    calm = launch(tmp_path, "calm", how, steps=20)
    kills = ("worker:*@clock:9", "worker:1@clock:9,300ms", "worker:0@clock:9,600ms")
    storm = launch(tmp_path, "storm", how, *(f"--fault=kill:{kill}" for kill in kills), steps=20)
    assert calm == storm
    assert (tmp_path / "storm.run" / "events.jsonl").read_text().count('"fault"') >= len(kills)


def test_buffers(tmp_path: Path) -> None:
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(5))
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1), persistent=False)
            self.register_buffer("count", torch.tensor(2**24 + 1))
            self.register_buffer("flags", torch.tensor([True, False, True]))
            self.register_buffer("short", torch.tensor([1.5], dtype=torch.bfloat16))
            self.register_buffer("none", torch.empty(0))

    model = Model()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        with perdure.ServerOptimizer(
            job, model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.1, weight_decay=0.1)
        ) as p:
            for _ in range(100):  # the job ends earlier
                model.linear(torch.ones(1, 3)).sum().backward()
                model.count += 1
                p.step()
                p.zero_grad()
        assert job.now == job.end == 9
    assert (model.unused == 1).all()  # unchanged, as with an optimizer that finds no gradient
    assert not (model.linear.weight == 0).any()
    assert int(model.count) == 2**24 + 1 + 8
    for name in ("mask", "flags", "short"):
        assert (dict(model.named_buffers())[name] == before[name]).all()


#: Final parameters for the same batches and optimizer, with plain PyTorch and with Perdure.
COMPARE = """
import os, sys
import numpy as np, torch
from torch import nn
torch.set_num_threads(1)
how, out, name = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 700), nn.Tanh(), nn.Linear(700, 3))
make = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-3, betas=(0.8, 0.99), weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}[name]
g = torch.Generator().manual_seed(rank)
def loss_of(m):
    x = torch.randn(8, 12, generator=g)
    return nn.functional.cross_entropy(m(x), (x[:, :3]).argmax(1))
if how == "ddp":
    torch.distributed.init_process_group("gloo")
    m = nn.parallel.DistributedDataParallel(model)
    optimizer = make(m.parameters())
    for _ in range(30):
        optimizer.zero_grad()
        loss_of(m).backward()
        optimizer.step()
else:
    import perdure
    with perdure.start() as job:
        p = perdure.ServerOptimizer(job, model, make(model.parameters()))
        for _ in range(30):
            p.zero_grad()
            loss_of(model).backward()
            p.step()
if rank == 0:
    np.save(out, torch.cat([v.detach().reshape(-1) for v in model.parameters()]).numpy())
if how == "ddp":
    os._exit(0)  # gloo's threads now and then abort a process that ends otherwise
"""


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adagrad"])
def test_as_distributed_data_parallel(tmp_path: Path, name: str) -> None:
    program = tmp_path / "compare.py"
    program.write_text(COMPARE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    theirs, ours = tmp_path / "theirs.npy", tmp_path / "ours.npy"
    rendezvous = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    here = ["-m", "perdure", "launch", "--nproc", "2", "-q", *SMALL, "--out", str(tmp_path / "run")]
    for command, how, out in ((rendezvous, "ddp", theirs), (here, "perdure", ours)):
        subprocess.run([sys.executable, *command, str(program), how, str(out), name], env=environment, check=True)
    a, b = np.load(theirs), np.load(ours)
    assert a.shape == b.shape
    assert np.abs(a - b).max() < 2e-5 * max(1.0, float(np.abs(a).max()))


def optimizer_of(p: perdure.ServerOptimizer) -> torch.optim.Optimizer:
    assert p._optimizer is not None
    return p._optimizer


def test_mistakes(tmp_path: Path) -> None:
    from torch import nn

    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        for optimizer, said in (
            (torch.optim.AdamW(parameters, 1e-3), "weight_decay of AdamW"),
            (torch.optim.Adam(parameters, 1e-3, amsgrad=True), "amsgrad"),
            (torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.5), "dampening"),
            (torch.optim.RMSprop(parameters, 0.1), "RMSprop"),
            (torch.optim.SGD(parameters[:1], 0.1), "lacks bias"),
            (torch.optim.SGD([*parameters, *nn.Linear(1, 1).parameters()], 0.1), "does not train"),
        ):
            with pytest.raises(perdure.UsageError, match=said):
                perdure.ServerOptimizer(job, model, optimizer)
        p = perdure.ServerOptimizer(job, model, torch.optim.SGD(parameters, 0.1))
        model(torch.full((1, 3), float("nan"))).sum().backward()
        with pytest.raises(perdure.NonFinite, match="weight contains NaN or Inf"):
            p.step()
        p.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        p.step()

        class Odd:
            def state_dict(self) -> dict[str, object]:
                return {"a": [1, {"b": object()}]}

            def load_state_dict(self, _: object) -> None:
                pass

        for group in optimizer_of(p).param_groups:
            group["lr"] = 0.01
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(perdure.UsageError, match="changed the optimizer's rate"):
            p.step()
        optimizer_of(p).param_groups[0]["lr"] = 0.1
        p._state.append(Odd())
        with pytest.raises(
            perdure.UsageError, match=r"state\['state'\]\[1\]\['a'\]\[1\]\['b'\] is an object, which needs pickle"
        ):
            p.step()
        with pytest.raises(perdure.UsageError, match="sync_every 0"):
            perdure.DiLoCo(job, model, torch.optim.SGD(parameters, 0.1), sync_every=0)


def test_optimizer_sizes() -> None:
    from torch import nn
    from torch.optim import SGD, AdamW

    from perdure import torch as of

    small = nn.Linear(32, 32)
    for make, copies in (
        (lambda p: AdamW(p), 2),
        (lambda p: AdamW(p, amsgrad=True), 3),
        (lambda p: SGD(p, 0.1, momentum=0.9), 1),
        (lambda p: SGD(p, 0.1), 0),
    ):
        optimizer = make(small.parameters())
        foretold = of._bytes_of(optimizer)
        small(torch.ones(1, 32)).sum().backward()
        optimizer.step()
        assert foretold == 4 * copies * (32 * 32 + 32)
        assert foretold <= of._bytes_of(optimizer) <= foretold + 8  # two step counters
