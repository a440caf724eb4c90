"""DataParallel: the program keeps its own optimizer, and the model is that of one process, through all deaths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cluster
from launched import Death, hash_of, kills, launch

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

#: What a training in two processes and its reference in one have in common.
COMMON = """
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

WORLD, SAMPLES, BATCH = 2, 640, 16
x = torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(7))
y = (x @ torch.randn(12, 3, generator=torch.Generator().manual_seed(8))).argmax(1)
data = list(zip(range(SAMPLES), x, y))


def model_of(rank):
    torch.manual_seed(5 + rank)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def loader_of(rank):
    return StatefulDataLoader(data[rank::WORLD], batch_size=BATCH, shuffle=True)


def optimizer_of(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 2e-2}]
    optimizer = torch.optim.AdamW(groups, 1e-2, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)


def drawn():
    ids = torch.randint(SAMPLES, (BATCH,))
    return ids, x[ids], y[ids]


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[1]), batch[2])


def update(model, optimizer, scheduler):
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
"""

#: A training in the job ``job``. Its settings are in ``given``: ``how`` it gets its batches, the ``accumulation`` of
#: backward passes in a step, and whether a ``table`` of the program's counts the samples as well.
PROGRAM = """
import hashlib
import perdure
from torch.utils.data import DataLoader

class Counts:
    \"\"\"How often this slot has trained each sample.\"\"\"

    def __init__(self):
        self.values = [0] * SAMPLES

    def add(self, ids):
        for i in ids.tolist():
            self.values[i] += 1

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


how, accumulation = given["how"], given["accumulation"]
model, counts, loader = model_of(job.slot), Counts(), loader_of(job.slot)
table = job.table("counts", SAMPLES, dim=1, rule=perdure.Add()) if given.get("table") else None
optimizer, scheduler = optimizer_of(model)
if how == "sampler":
    sampler = perdure.Sampler(job, SAMPLES, BATCH)
    loader = sampler.loader(DataLoader(data, batch_sampler=sampler))
state = [counts, loader] if how == "batches" else [counts]


def count(batch):
    counts.add(batch[0])
    if table is not None:
        table.inc(batch[0].numpy(), torch.ones(len(batch[0]), 1).numpy())


with perdure.DataParallel(job, model, optimizer, shared=[scheduler], state=state) as training:
    if how == "steps":
        for step in training.steps(given["steps"]):
            for i in range(accumulation):
                batch = drawn()
                count(batch)
                if i + 1 < accumulation:
                    with training.no_sync():
                        loss = loss_of(model, batch)
                else:
                    loss = loss_of(model, batch)
                (loss / accumulation).backward()
            update(model, optimizer, scheduler)
    else:
        for epoch in job.epochs(given["epochs"]):
            for batch in training.batches(loader):
                count(batch)
                training.require_backward_grad_sync = (sum(counts.values) // BATCH) % accumulation == 0
                (loss_of(model, batch) / accumulation).backward()
                if training.require_backward_grad_sync:
                    update(model, optimizer, scheduler)
    total = None if table is None else table.get_run(0, SAMPLES).ravel().tolist()
hash_of = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()
result = {"hash": hash_of, "counts": counts.values, "table": total}
"""

#: A process that runs programs in the slots of jobs, one after another. Importing torch takes longer than any of them.
SERVE = """
import json, sys
import perdure, torch
torch.set_num_threads(1)
for line in sys.stdin:
    task = json.loads(line)
    try:
        with perdure.join(task["coordinator"], task["secret_file"], slot=task["slot"]) as job:
            names = {"job": job, "given": task["given"], "__name__": "program"}
            exec(task["program"], names)
        said = {"result": names.get("result")}
    except Exception as error:
        said = {"error": type(error).__name__, "text": str(error)}
    print("said", json.dumps(said), flush=True)
"""

#: Runs such a program in a process that ``perdure launch`` has started.
LAUNCHED = """
import json, sys
import perdure, torch
torch.set_num_threads(1)
with perdure.start() as job:
    names = {"job": job, "given": GIVEN, "__name__": "program"}
    exec(TEXT, names)
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump(names["result"], f)
"""

STEPS, EPOCHS = 40, 2  # an epoch is 20 batches of each slot
PRELOAD = ("--preload", "torch,torch._dynamo,perdure.torch,torchdata.stateful_dataloader")


class Pair:
    """Two processes that run programs in the two slots of jobs."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", SERVE],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(2)
        ]

    def run(self, folder: Path, program: str, *flags: str, **given: Any) -> list[dict[str, Any]]:
        """Run a program in both slots of a job. Return for each its ``result``, or its ``error`` and the ``text``.

        If one of them fails, the job is ended.
        """
        cluster = Cluster(folder, "--workers", "2", "--servers", "2", "--clocks", "1000", *flags)
        try:
            for slot, process in enumerate(self.processes):
                task = {"coordinator": cluster.owner.coordinator, "secret_file": cluster.owner.secret_file}
                task |= {"slot": slot, "program": program, "given": given}
                assert process.stdin is not None
                process.stdin.write(json.dumps(task) + "\n")
                process.stdin.flush()
            said: dict[int, Any] = {}
            with ThreadPoolExecutor(2) as threads:
                for done in as_completed([threads.submit(self._said, slot) for slot in range(2)]):
                    slot, value = done.result()
                    said[slot] = value
                    if "error" in value:
                        cluster.owner.process.terminate()
                        cluster.owner.process.terminate()  # the second time without a last checkpoint
            return [said[slot] for slot in range(2)]
        finally:
            cluster.end()

    def _said(self, slot: int) -> tuple[int, Any]:
        of = self.processes[slot]
        assert of.stdout is not None
        for line in of.stdout:
            if line.startswith("said "):
                return slot, json.loads(line[5:])
        return slot, {"error": "died", "text": f"the process has ended with {of.wait()}"}

    def close(self) -> None:
        for of in self.processes:
            of.kill()
            of.wait()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    of = Pair()
    yield of
    of.close()


def results_of(said: list[dict[str, Any]]) -> list[Any]:
    assert ["result" in of for of in said] == [True, True], said
    return [of["result"] for of in said]


def train(folder: Path, name: str, how: str, *flags: str, **given: Any) -> list[dict[str, Any]]:
    """Train with two processes that are started again when they die."""
    given = {"how": how, "accumulation": 1, "steps": STEPS, "epochs": EPOCHS} | given
    program = LAUNCHED.replace("GIVEN", repr(given)).replace("TEXT", repr(COMMON + PROGRAM))
    return launch(folder, name, program, *PRELOAD, *flags)


def joined(results: list[dict[str, Any]]) -> tuple[str, list[int]]:
    """Return the hash of the model, and how often all slots together have trained each sample."""
    assert results[0]["hash"] == results[1]["hash"]
    return results[0]["hash"], [a + b for a, b in zip(*(of["counts"] for of in results), strict=True)]


class Slot:
    """One of the two slots, in a process that has both."""

    def __init__(self, rank: int, how: str) -> None:
        self.of: dict[str, Any] = {}
        exec(COMMON, self.of)
        self.rank, self.how = rank, how
        self.model = self.of["model_of"](rank)
        self.optimizer, self.scheduler = self.of["optimizer_of"](self.model)
        self.random = torch.get_rng_state()
        self.batches = self._batches()
        self.counts = [0] * self.of["SAMPLES"]

    def _batches(self) -> Iterator[Any]:
        of, batch = self.of, self.of["BATCH"]
        loader = of["loader_of"](self.rank)
        loader.generator = torch.Generator()  # as DataParallel does, so that the order follows from torch's seed
        for epoch in range(1000):
            if self.how == "steps":
                yield of["drawn"]()
            elif self.how == "batches":
                yield from loader
            else:  # the order of a Sampler
                keys = np.random.Philox(key=np.array([0, epoch], np.uint64)).random_raw(of["SAMPLES"])
                for ids in torch.from_numpy(np.argsort(keys, kind="stable")).split(2 * batch):
                    own = ids[self.rank * batch :][:batch]
                    yield own, of["x"][own], of["y"][own]

    def backward(self, accumulation: int) -> None:
        """Add up the gradients of a step."""
        torch.set_rng_state(self.random)
        for _ in range(accumulation):
            batch = next(self.batches)
            for i in batch[0].tolist():
                self.counts[i] += 1
            (self.of["loss_of"](self.model, batch) / accumulation).backward()
        self.random = torch.get_rng_state()


def reference(how: str, accumulation: int = 1) -> tuple[str, list[int]]:
    """Train two slots in this process, with the mean of their gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, second = slots = [Slot(rank, how) for rank in range(2)]
        second.model.load_state_dict(first.model.state_dict())
        for _ in range(STEPS if how == "steps" else STEPS // accumulation):
            for slot in slots:
                slot.backward(accumulation)
            for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
                a.grad = (a.grad + b.grad) / 2
                b.grad = a.grad.clone()
            for a, b in zip(first.model.buffers(), second.model.buffers(), strict=True):
                b.copy_(a)
            for slot in slots:
                slot.of["update"](slot.model, slot.optimizer, slot.scheduler)
        return hash_of(first.model), [a + b for a, b in zip(first.counts, second.counts, strict=True)]
    finally:
        torch.set_num_threads(before)


CALM: dict[tuple[str, int], tuple[str, list[int]]] = {}  # the results of the reference


def calm(how: str, accumulation: int = 1) -> tuple[str, list[int]]:
    if (how, accumulation) not in CALM:
        CALM[how, accumulation] = reference(how, accumulation)
    return CALM[how, accumulation]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("how", ["steps", "batches", "sampler"])
def test_as_one_process(tmp_path: Path, pair: Pair, how: str, accumulation: int) -> None:
    given: dict[str, Any] = {"how": how, "accumulation": accumulation, "steps": STEPS, "epochs": EPOCHS, "table": True}
    results = results_of(pair.run(tmp_path, COMMON + PROGRAM, **given))
    assert joined(results) == calm(how, accumulation)
    assert results[0]["table"] == results[1]["table"] == joined(results)[1]


@pytest.mark.parametrize(
    ("how", "accumulation", "recovery", "deaths"),
    [
        ("steps", 1, "checkpoint:7", ["worker:0@clock:9", "server:0@clock:20", "coordinator@clock:30"]),
        ("batches", 1, "resend:auto", ["server:0@clock:9", "worker:1@clock:22", "server:1@clock:22"]),
        ("sampler", 2, "chain:2,checkpoint:7", ["worker:1@clock:5", "worker:*@clock:11", "server:0@clock:15"]),
    ],
)
def test_same_model_through_deaths(
    tmp_path: Path, how: str, accumulation: int, recovery: str, deaths: list[str]
) -> None:
    faults = [f"--fault=kill:{of}" for of in deaths]
    got = joined(train(tmp_path, "storm", how, "--recovery", recovery, *faults, accumulation=accumulation))
    assert got == calm(how, accumulation)
    assert kills(tmp_path, "storm") >= len(deaths)
    if how != "steps":
        assert set(got[1]) == {EPOCHS}


def lives(folder: Path, life: Callable[[perdure.Job, int], Any], deaths: int, *flags: str) -> Any:
    """Train in the only slot of a job with a checkpoint every 3 clocks, and simulate deaths of its process.

    Args:
        life: Trains until the next death, which it raises. It receives the job and the number of that death.

    Returns:
        The result of the last life.
    """
    given = ["--workers", "1", "--servers", "1", "--clocks", "1000", "--recovery", "checkpoint:3", *flags]
    cluster = Cluster(folder, *given)
    try:
        for number in range(deaths):
            with pytest.raises(Death), cluster.join(0) as job:
                life(job, number)
        with cluster.join(0) as job:
            return life(job, deaths)
    finally:
        cluster.end()


class Kept:
    """A counter of the program."""

    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


#: The batches, counted from 1, at which the process dies, and where in the code of a step.
PLACES = [(1, "batch"), (6, "forward"), (8, "backward"), (9, "batch"), (10, "step"), (14, "epoch"), (17, "backward")]


@pytest.mark.parametrize(
    ("generator", "workers"),
    [
        (False, 0),
        (False, 1),
        pytest.param(True, 0, marks=pytest.mark.xfail(strict=True, reason="torchdata restores only the current epoch")),
    ],
)
def test_deaths_everywhere(tmp_path: Path, generator: bool, workers: int) -> None:
    """The process dies at each point of the loop. Schedulers of epochs make each step once."""

    def life(job: perdure.Job, number: int) -> Any:
        at, where = places[number] if number < len(places) else (0, "")
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
        g = torch.Generator().manual_seed(8) if generator else None
        own: dict[str, Any] = {"num_workers": workers, "generator": g, "drop_last": True}
        loader = StatefulDataLoader(torch.randn(22, 4), batch_size=3, shuffle=True, **own)
        kept, lr, made = Kept(), [], []

        def die(here: str) -> None:
            if (kept.n, here) == (at, where):
                raise Death

        with perdure.DataParallel(job, model, optimizer, shared=[scheduler], state=[kept, loader]) as training:
            for _ in job.epochs(3):
                for x in training.batches(loader):
                    kept.n += 1
                    die("batch")
                    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                    die("forward")
                    loss.backward()
                    die("backward")
                    optimizer.step()
                    optimizer.zero_grad()
                    made.append(x.sum().item())
                    die("step")
                scheduler.step()
                die("epoch")
                lr.append(scheduler.get_last_lr())
        assert scheduler.last_epoch == 3
        return hash_of(model), kept.n, lr[-1], made[-4:]

    places: list[tuple[int, str]] = []
    undisturbed = lives(tmp_path / "calm", life, 0)
    places = PLACES
    assert lives(tmp_path / "storm", life, len(places)) == undisturbed
