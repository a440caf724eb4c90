"""DataParallel: the program keeps its own optimizer, and the model is that of one process, through all deaths."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Cluster
from launched import Death, hash_of, kills, launch

import perdure
from perdure.progress import NO_END

torch = pytest.importorskip("torch")
nn = torch.nn
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

#: The common part of a training in two processes and of its reference in one.
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

with perdure.DataParallel(job, model, optimizer, shared=[scheduler], state=state, copy=given.get("copy")) as training:
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

    def run(
        self, folder: Path, program: str, *flags: str, both_fail: bool = False, **given: Any
    ) -> list[dict[str, Any]]:
        """Run a program in both slots of a job. Return for each its ``result``, or its ``error`` and the ``text``.

        If one of them fails, the job is ended, unless both are expected to.
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
                    if "error" in value and not both_fail:
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


def failure_of(said: list[dict[str, Any]], kind: str) -> str:
    """Return the text of an error of this type. The other slot has the same error, unless all were rolled back."""
    assert {of.get("error") for of in said} - {"RolledBack"} == {kind}, said
    texts = [of["text"] for of in said if of["error"] == kind]
    assert texts[0] == texts[-1]
    return str(texts[0])


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


@pytest.mark.parametrize(
    ("how", "accumulation", "recovery", "deaths"),
    [
        ("steps", 1, "checkpoint:100", ["worker:0@clock:9", "worker:1@clock:20", "worker:0@clock:30"]),
        ("batches", 1, "resend:100", ["server:0@clock:4", "worker:1@clock:14", "worker:0@clock:25"]),
        ("batches", 2, "checkpoint:100", ["worker:0@clock:7", "coordinator@clock:7", "worker:1@clock:14"]),
        ("sampler", 1, "chain:2,checkpoint:100", ["worker:0@clock:6", "server:1@clock:6", "worker:1@clock:25"]),
    ],
)
def test_copies(tmp_path: Path, how: str, accumulation: int, recovery: str, deaths: list[str]) -> None:
    """A replacement copies the shared state of the living process."""
    faults = [f"--fault=kill:{of}" for of in deaths]
    given = {"accumulation": accumulation, "copy": True}
    assert joined(train(tmp_path, "storm", how, "--recovery", recovery, *faults, **given)) == calm(how, accumulation)
    assert '"kind":"copying"' in (tmp_path / "storm.run" / "events.jsonl").read_text()


#: What the loop does depends on the schedule, a shared counter and the clock. It draws random numbers.
SCHEDULED = """
import json, sys
import perdure, torch
from torch import nn
torch.set_num_threads(1)

class Shared:
    def __init__(self):
        self.n, self.mean, self.large = 0, torch.zeros(2), torch.zeros(100)

    def state_dict(self):
        return {"n": self.n, "tensors": (self.mean, [self.large])}

    def load_state_dict(self, state):
        self.n, (self.mean, [self.large]) = state["n"], state["tensors"]

with perdure.start() as job:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.9)
    shared = Shared()
    with perdure.DataParallel(job, model, optimizer, shared=[scheduler, shared]) as training:
        for _ in training.steps(280):
            x = torch.randn(8, 4)
            if scheduler.last_epoch % 5 == 4 or shared.n % 7 == 6 or job.now % 11 == 10:
                torch.rand(1)
            if optimizer.param_groups[0]["lr"] < 8.5e-3:
                torch.rand(2)
            model(x).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            shared.n, shared.mean, shared.large = shared.n + 1, shared.mean + 1, shared.large + 1
    result = [*(p.tolist() for p in model.parameters()), shared.n, shared.mean.tolist(), shared.large.tolist()]
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump(result, f)
"""


def test_copies_schedules(tmp_path: Path) -> None:
    """In the repeated step the schedule and the counters are those of that step, although the weights are not."""
    flags = (*PRELOAD, "--recovery", "checkpoint:1000")
    undisturbed = launch(tmp_path, "calm", SCHEDULED, *flags)
    deaths = ["worker:0@clock:56", "worker:1@clock:113", "worker:0@clock:176", "worker:1@clock:236"]
    assert launch(tmp_path, "storm", SCHEDULED, *flags, *(f"--fault=kill:{of}" for of in deaths)) == undisturbed
    events = (tmp_path / "storm.run" / "events.jsonl").read_text()
    assert (events.count('"kind":"copying"'), events.count('"kind":"rollback"')) == (len(deaths), 0)


#: Random draws depend on the weights, a buffer and a log follow them, and shared objects change at an epoch's end.
EPOCHS_OF_FOUR = """
import hashlib, json, sys
import perdure, torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("slow", torch.zeros(2, 4))

    def forward(self, x):
        return self.linear(x) + 0.1 * x @ self.slow.T

def digest(model):
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()[:16]

with perdure.start() as job:
    torch.manual_seed(4)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    average = torch.optim.swa_utils.AveragedModel(model)
    loader = StatefulDataLoader(torch.randn(16, 4), batch_size=4, shuffle=True)
    log = {}
    with perdure.DataParallel(job, model, optimizer, shared=[scheduler, average], state=[loader]) as training:
        for epoch in job.epochs(70):
            for x in training.batches(loader):
                rate = nn.functional.softplus(model(x)) + 0.05
                torch.distributions.Gamma(rate, 1.0).rsample().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    model.slow.mul_(0.9).add_(model.linear.weight, alpha=0.1)
                log[job.now] = digest(model.linear)
            scheduler.step()
            average.update_parameters(model)
    result = [digest(model), digest(average), scheduler.get_last_lr(), log]
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump(result, f)
"""


def test_copies_are_exact(tmp_path: Path) -> None:
    flags = (*PRELOAD, "--recovery", "checkpoint:1000")
    undisturbed = launch(tmp_path, "calm", EPOCHS_OF_FOUR, *flags)
    deaths = ["worker:0@clock:57", "worker:1@clock:114", "worker:0@clock:177", "worker:1@clock:236"]
    got = launch(tmp_path, "storm", EPOCHS_OF_FOUR, *flags, *(f"--fault=kill:{of}" for of in deaths))
    for one, calm_one in zip(got, undisturbed, strict=True):
        assert one[:3] == calm_one[:3]
        assert one[3].items() <= calm_one[3].items()
    assert '"kind":"copying"' in (tmp_path / "storm.run" / "events.jsonl").read_text()


def test_end_job(tmp_path: Path) -> None:
    """A resumed run continues from the state after the last step."""
    program = """
import json, sys
import perdure, torch
torch.set_num_threads(1)
with perdure.start() as job:
    torch.manual_seed(4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with perdure.DataParallel(job, model, optimizer) as training:
        for step in training.steps(20):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == END:
                job.end_job()
                assert job.ended
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump([p.tolist() for p in model.parameters()], f)
"""
    flags = (*PRELOAD, "--recovery", "checkpoint:100")
    whole = launch(tmp_path, "whole", program.replace("END", "99"), *flags)
    assert launch(tmp_path, "first", program.replace("END", "7"), *flags) != whole
    again = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "-q", "--clocks", "1000", *PRELOAD]
    again += ["--out", str(tmp_path / "again.run"), "--resume", str(tmp_path / "first.run")]
    (tmp_path / "train.py").write_text(program.replace("END", "99"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*again, str(tmp_path / "train.py"), str(tmp_path / "again")], env=environment, check=True)
    assert [json.loads((tmp_path / f"again.{slot}").read_text()) for slot in range(2)] == whole


@pytest.mark.parametrize("deaths", [["worker:0@clock:9", "worker:1@clock:9"], ["worker:*@clock:9", "server:0@clock:9"]])
def test_nobody_to_copy_from(tmp_path: Path, deaths: list[str]) -> None:
    """If both die, or the source dies before its copy is complete, all roll back."""
    faults = [f"--fault=kill:{of}" for of in deaths]
    got = train(tmp_path, "storm", "batches", "--recovery", "checkpoint:100", *faults, copy=True)
    assert joined(got) == calm("batches")
    assert '"kind":"rollback"' in (tmp_path / "storm.run" / "events.jsonl").read_text()


def lives(folder: Path, life: Callable[[perdure.Job, int], Any], deaths: int, *flags: str) -> Any:
    """Train in the only slot of a job with a checkpoint every 3 clocks, and simulate deaths of its process.

    Args:
        life: Trains until the next death, which it raises. It receives the job and the number of that death.

    Returns:
        The result of the last life.
    """
    recovery = flags or ("--recovery", "checkpoint:3")
    cluster = Cluster(folder, "--workers", "1", "--servers", "1", "--clocks", "1000", *recovery)
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


@pytest.mark.parametrize(("generator", "workers"), [(False, 0), (False, 1), (True, 0), (True, 1)])
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


@pytest.mark.parametrize("where", ["forward", "step"])
def test_own_table(tmp_path: Path, where: str) -> None:
    """Updates of the program's own table count once, whether the program makes them before or after backward."""

    def life(job: perdure.Job, number: int) -> list[float]:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        counts = job.table("counts", rows=10, dim=1, rule=perdure.Add())
        with perdure.DataParallel(job, model, optimizer) as training:
            for step in training.steps(10):
                if where == "forward":
                    counts.inc([step], [[1.0]])
                if number == 0 and step == 7:
                    raise Death
                model(torch.ones(1, 2)).sum().backward()
                if where == "step":
                    counts.inc([step], [[1.0]])
                optimizer.zero_grad()
            total: list[float] = counts.get_run(0, 10).ravel().tolist()  # with updates that are not sent yet
        return total

    assert lives(tmp_path, life, 1) == [1.0] * 10


#: The parts of a training that a case may replace.
PARTS = """
import contextlib, copy, dataclasses, hashlib
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
AdamW, SGD = torch.optim.AdamW, torch.optim.SGD

def model_of():
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))

def optimizers_of(model):
    return [AdamW(model.parameters(), 1e-2)]

def shared_of(model, optimizers):
    return []

def loss_of(model, x, rank, step):
    return model(x).square().mean()

def backward(loss, shared):
    loss.backward()

def after(model, optimizers, shared):
    for of in optimizers:
        of.step()
        of.zero_grad()

def made(seed):
    torch.manual_seed(seed)
    model = model_of()
    optimizers = optimizers_of(model)
    return model, optimizers, shared_of(model, optimizers)

def x_of(rank, step):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))

def digest(*of):
    h = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            h.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, each in value.items():
                add(key), add(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        else:
            h.update(repr(value).encode())

    add([each.state_dict() for each in of])
    return h.hexdigest()
"""

WITH_PERDURE = """
import perdure
import perdure._parallel
import perdure._pieces
perdure._parallel._BUCKET = given.get("bucket", 25 << 20)
perdure._pieces.PIECE = given.get("piece", 32 << 20)
model, optimizers, shared = made(job.slot)
with perdure.DataParallel(job, model, optimizers, shared=shared) as training:
    for step in training.steps(6):
        backward(loss_of(model, x_of(job.slot, step), job.slot, step), shared)
        after(model, optimizers, shared)
result = digest(model, *optimizers, *shared)
"""

CASES = {
    "parameters of several pieces": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 700, 3, padding=1)
        self.out = nn.Linear(700, 9)

    def forward(self, x):
        return self.out(self.conv(x.view(-1, 2, 3, 1)).mean((2, 3)))

def model_of():
    return Model().to(memory_format=torch.channels_last)
""",
    "two optimizers": """
def optimizers_of(model):
    return [SGD(model[0].parameters(), 0.1, momentum=0.9), AdamW(model[2].parameters(), 1e-2)]
""",
    "fused": """
def optimizers_of(model):
    return [AdamW(model.parameters(), 1e-2, fused=True)]
""",
    "averages and plateau": """
def shared_of(model, optimizers):
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    return [average, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[0], patience=0)]

def after(model, optimizers, shared):
    optimizers[0].step()
    optimizers[0].zero_grad()
    shared[0].update_parameters(model)
    shared[1].step(model[0].weight.square().sum().item())
""",
    "autocast": """
def loss_of(model, x, rank, step):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).square().mean()
""",
    "bfloat16": """
def model_of():
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2)).to(torch.bfloat16)

def loss_of(model, x, rank, step):
    return model(x.to(torch.bfloat16)).square().mean()
""",
    "dictionary": """
class Model(nn.Linear):
    def forward(self, x):
        return {"out": {"of": super().forward(x)}, "n": 3}

def model_of():
    return Model(6, 2)

def loss_of(model, x, rank, step):
    return model(x)["out"]["of"].square().mean()
""",
    "tuple": """
class Model(nn.Linear):
    def forward(self, x):
        of = super().forward(x)
        return of.detach(), [of, of * 2]

def model_of():
    return Model(6, 2)

def loss_of(model, x, rank, step):
    return model(x)[1][step % 2].square().mean()
""",
    "data class": """
@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor

class Model(nn.Linear):
    def forward(self, x):
        of = super().forward(x)
        return Output(of.square().mean(), of)

def model_of():
    return Model(6, 2)

def loss_of(model, x, rank, step):
    return model(x).loss
""",
    "two calls": """
def loss_of(model, x, rank, step):
    return model(x).square().mean() + model(x.flip(0) + 1).mean() / 2
""",
    "gradient penalty": """
def loss_of(model, x, rank, step):
    out = model(x.requires_grad_())
    penalty = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    return out.square().mean() + penalty.square().mean()
""",
    "inputs with gradients": """
def loss_of(model, x, rank, step):
    x.requires_grad_()
    return model(x).square().mean()
""",
    "compiled": """
def model_of():
    return torch.compile(nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2)), backend="aot_eager")

def optimizers_of(model):
    return [AdamW(model.parameters(), 1e-2)]
""",
    "compiled in place": """
def model_of():
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
    model.compile(backend="aot_eager")
    return model
""",
    "buffers": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 10), nn.BatchNorm1d(10)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.tensor(0), persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.steps += 1
        return self.norm(self.linear(x - self.mean))

def model_of():
    return Model()

def loss_of(model, x, rank, step):
    return model(x).square().mean() + model.linear.weight.sum() / 100
""",
    "conditional": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x, rank, step):
        return self.first(x) + self.second(x) if rank == 1 and step != 3 else self.first(x)

def model_of():
    return Model()

def loss_of(model, x, rank, step):
    global seen
    seen = step
    return model(x, rank, step).square().mean()

def after(model, optimizers, shared):
    assert model.unused.weight.grad is None
    assert (model.second.weight.grad is None) == (seen == 3)
    assert seen == 3 or model.second.weight.grad.abs().sum() > 0
    optimizers[0].step()
    optimizers[0].zero_grad()
""",
    "scaler": """
def shared_of(model, optimizers):
    return [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)]

def loss_of(model, x, rank, step):
    return model(x).square().mean() * (float("inf") if rank == 1 and step == 2 else 1.0)

def backward(loss, shared):
    shared[0].scale(loss).backward()

def after(model, optimizers, shared):
    shared[0].unscale_(optimizers[0])
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    shared[0].step(optimizers[0])
    shared[0].update()
    optimizers[0].zero_grad()
""",
}
CASES["gradients of zero"] = (
    CASES["conditional"].split("def after")[0]
    + """
def after(model, optimizers, shared):
    optimizers[0].step()
    optimizers[0].zero_grad(set_to_none=False)
"""
)
CASES["fused with a scaler"] = CASES["fused"] + CASES["scaler"].replace(
    "shared[0].unscale_(optimizers[0])", ""
).replace("nn.utils.clip_grad_norm_(model.parameters(), 0.5)", "")
for reentrant in (True, False):
    CASES[f"checkpoint, {reentrant}"] = f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 2)

    def forward(self, x):
        of = checkpoint(lambda v: self.b(torch.tanh(self.b(v))), self.a(x), use_reentrant={reentrant})
        return self.c(checkpoint(lambda v: self.b(v).tanh(), of, use_reentrant={reentrant}))

def model_of():
    return Model()
"""
    CASES[f"all in a checkpoint, {reentrant}"] = f"""
def loss_of(model, x, rank, step):
    return checkpoint(model, x.requires_grad_(), use_reentrant={reentrant}).square().mean()
"""


def program_of(case: str, program: str) -> str:
    head, foot = PARTS.split("\n\ndef made(")
    return f"{head}\n{case}\n\ndef made({foot}{program}"


def in_one_process(case: str) -> str:
    """Return the digest of two slots trained in this process, with the mean of their gradients."""
    of: dict[str, Any] = {"__name__": "reference"}
    exec(program_of(case, ""), of)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        slots = [of["made"](rank) for rank in range(2)]
        first, second = (model for model, *_ in slots)
        second.load_state_dict(first.state_dict())
        for step in range(6):
            for rank, (model, _, shared) in enumerate(slots):
                of["backward"](of["loss_of"](model, of["x_of"](rank, step), rank, step), shared)
            for a, b in zip(first.parameters(), second.parameters(), strict=True):
                if a.grad is not None or b.grad is not None:
                    sums = sum(g.float() for g in (a.grad, b.grad) if g is not None)
                    a.grad, b.grad = ((sums / 2).to(a.dtype) for _ in range(2))
            for a, b in zip(first.buffers(), second.buffers(), strict=True):
                b.copy_(a)
            for slot in slots:
                of["after"](*slot)
        digests = [of["digest"](model, *optimizers, *shared) for model, optimizers, shared in slots]
        assert digests[0] == digests[1]
        return str(digests[0])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_features(tmp_path: Path, pair: Pair, name: str) -> None:
    expected = [in_one_process(CASES[name])] * 2
    program = program_of(CASES[name], WITH_PERDURE)
    assert results_of(pair.run(tmp_path / "one", program)) == expected
    # A bucket for each parameter, and pieces of two rows.
    assert results_of(pair.run(tmp_path / "each", program, bucket=1, piece=8192)) == expected


def test_not_finite(tmp_path: Path, pair: Pair) -> None:
    """Without a scaler the step is refused in all slots, with the name of the parameter."""
    case = """
def loss_of(model, x, rank, step):
    return model(x).square().mean() + (model[2].bias.sum() * float("inf") if rank == 1 and step == 2 else 0.0)
"""
    said = pair.run(tmp_path, program_of(case, WITH_PERDURE), both_fail=True)
    assert "2.bias contains NaN or Inf in step 2" in failure_of(said, "NonFinite")


def refuses(match: str) -> Any:
    return pytest.raises(perdure.UsageError, match=match)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[perdure.Job]:
    """A job whose only worker is this process."""
    with perdure.start(servers=1, out=tmp_path / "run", args=SMALL) as of:
        yield of


class Odd:
    """An object whose state cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"of": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_refused_at_the_start(one: perdure.Job) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    of, other = list(model.parameters()), list(nn.Linear(2, 2).parameters())
    sgd = torch.optim.SGD(of, 0.1)
    loader = StatefulDataLoader([1, 2])

    def make(optimizer: Any = sgd, **settings: Any) -> Any:
        return perdure.DataParallel(one, model, optimizer, **settings)

    with refuses("not in the model"):
        make(torch.optim.SGD([*of, *other], 0.1))
    with refuses(r"1\.weight, 1\.bias"):
        make(torch.optim.SGD(of[:2], 0.1))
    with refuses("StatefulDataLoader"):
        make(shared=[loader])
    with refuses("SGD"):
        make(shared=[torch.optim.SGD(of, 0.1)])
    for name in ("shared", "state"):
        with refuses("state of Odd"):
            make(**{name: [Odd()]})
    model[0].bias.requires_grad_(False)
    with refuses(r"0\.bias"):
        make()
    model.requires_grad_(False)
    with refuses("trained parameters"):
        make(torch.optim.SGD([torch.ones(1)], 0.1))
    with refuses("float64"):
        model.to(torch.float64).requires_grad_()
        make()
    model.float()
    was = one.spec["recovery"]
    for recovery in ("none", "chain:2", "stateless", "scar:160,1/8", "checkpoint:5,partial", "resend:auto,partial"):
        one.spec["recovery"] = recovery
        with refuses("recovery"):
            make()
    one.spec["recovery"] = was
    assert one.now == 0
    with make(state=[loader]) as training:
        for plain in ([1, 2], torch.utils.data.DataLoader([1, 2]), StatefulDataLoader([1, 2])):
            with refuses(type(plain).__name__):
                training.batches(plain)
        with refuses("already trains"):
            make()
        with refuses("Sampler"):
            perdure.Sampler(one, 10, 2)


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
def test_consistency(tmp_path: Path, consistency: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    job = perdure.start(servers=1, out=tmp_path / "run", args=SMALL, consistency=consistency)
    with job, refuses("choose bsp, or use ServerOptimizer"):
        perdure.DataParallel(job, model, optimizer)


class Methods(nn.Module):
    """A model with a frozen parameter, and with other methods than ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(3, 2), nn.Embedding(4, 3, sparse=True)
        self.short = nn.Embedding(4, 3, max_norm=0.1)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Any, how: str = "") -> Any:
        if how == "sparse":
            x = self.table(torch.tensor([1, 2]))
        elif how == "max_norm":
            x = self.short(torch.tensor([1, 2]))
        return self.linear(x) * self.frozen


X = torch.ones(4, 3)
#: The code of a step, in which ``model``, ``optimizer`` and ``training`` are known, and the expected message.
STEPS_REFUSED = {
    "second pass": ("model(X).sum().backward(); model(X).sum().backward()", "called outside of a step, or again"),
    "second backward": ("a, b = model(X), model(X); a.sum().backward(); b.sum().backward()", "second synchronised"),
    "method": ("model.linear(X).sum().backward(); optimizer.step()", "SGD makes a step without a synchronised"),
    "no pass": ("optimizer.step()", "SGD makes a step without a synchronised"),
    "only without synchronisation": ("with training.no_sync(): model(X).sum().backward()\noptimizer.step()", "SGD"),
    "two steps": ("model(X).sum().backward(); optimizer.step(); optimizer.step()", "SGD makes a step without"),
    "sparse": ("model(X, 'sparse').sum().backward()", r"table\.weight is sparse"),
    "graph": ("model(X).square().sum().backward(create_graph=True)", "create_graph"),
    "max_norm": ("model(X, 'max_norm').sum().backward()", r"short\.weight was changed"),
    "unfrozen": ("model.frozen.requires_grad_(); model(X).sum().backward()", "frozen was frozen"),
    "nothing": ("pass", "step 0 ran no synchronised"),
    "method alone": ("model.linear(X).sum().backward()", "step 0 ran no synchronised"),
    "closure": ("optimizer.step(lambda: model(X).sum().backward())", "LBFGS makes a step without"),
}


@pytest.mark.parametrize("name", STEPS_REFUSED)
def test_refused_in_a_step(one: perdure.Job, name: str) -> None:
    code, said = STEPS_REFUSED[name]
    model = Methods()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(trained) if name == "closure" else torch.optim.SGD(trained, 0.1)
    with refuses(said), perdure.DataParallel(one, model, optimizer) as training:
        for _ in training.steps(2):
            exec(code, {"model": model, "optimizer": optimizer, "training": training, "X": X})


class Losses(Kept):
    """An average of losses that can be iterated over, like a loader."""

    def __iter__(self) -> Iterator[int]:
        return iter([self.n])


def test_copies_only_with_loaders(one: perdure.Job) -> None:
    """An object that may depend on the loss would differ in a replacement process."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = StatefulDataLoader(torch.ones(3, 3), batch_size=1)
    training = perdure.DataParallel(one, model, optimizer, state=[loader, Losses()])
    assert not training._copies
    training._let_go()


@pytest.mark.parametrize("how", ["no step", "no zero_grad", "no_sync"])
def test_refuses_left_gradients(one: perdure.Job, how: str) -> None:
    """A replacement process would lack the gradients of the earlier step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with refuses("an earlier step has left"), perdure.DataParallel(one, model, optimizer) as training:
        for _ in training.steps(3):
            if how == "no_sync":
                with training.no_sync():
                    model(X).sum().backward()
            model(X).sum().backward()
            if how != "no step":
                optimizer.step()


def test_refuses_uncounted_rates(one: perdure.Job) -> None:
    """A counter of the program would start from 0 in a replacement process."""
    model, count = nn.Linear(3, 2), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = StatefulDataLoader(torch.ones(9, 3), batch_size=1)
    with refuses("loop over steps"), perdure.DataParallel(one, model, optimizer, state=[loader]) as training:
        for x in training.batches(loader):
            count += 1
            optimizer.param_groups[0]["lr"] = 0.1 / count
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_refuses_uncounted_epochs(one: perdure.Job) -> None:
    """A loop over range(3) would start from 0 in a replacement process."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = StatefulDataLoader(torch.ones(3, 3), batch_size=1)
    one.spec["clocks"] = NO_END
    with refuses("second pass"), perdure.DataParallel(one, model, optimizer, state=[loader]) as training:
        for _ in range(3):
            for x in training.batches(loader):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()


def test_failed_backward(one: perdure.Job) -> None:
    """A program that continues after a failed backward pass would send a part of its gradients."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with refuses("has failed"), perdure.DataParallel(one, model, optimizer) as training:
        for _ in training.steps(1):
            hook = model[0].weight.register_hook(lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(X).sum().backward()
            hook.remove()
            model(X).sum().backward()


def test_called_outside_of_the_loop(one: perdure.Job) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with perdure.DataParallel(one, model, optimizer) as training:
        with refuses("outside of a step"):
            model(X)
        with torch.no_grad():
            model(X)
        for _ in training.steps(2):
            model(X).sum().backward()
            with torch.no_grad():
                model(X)
            optimizer.step()
            optimizer.zero_grad()
        with refuses("outside of a step"):
            model(X)
        with training.no_sync():  # such as a penalty that the program computes for itself
            torch.autograd.grad(model(X).sum(), model.weight)


def test_momentum_encoder_in_forward(one: perdure.Job) -> None:
    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            average.update_parameters(plain)
            return super().forward(x)

    plain = nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(plain)
    model = Model(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with refuses("AveragedModel"), perdure.DataParallel(one, model, optimizer, shared=[average]) as training:
        for _ in training.steps(2):
            model(X).sum().backward()


def test_objects_that_are_not_listed(one: perdure.Job) -> None:
    """Without them a replacement process would continue in another way."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with refuses("GradScaler"), perdure.DataParallel(one, model, optimizer) as training:
        for _ in training.steps(2):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(model(X).sum()).backward()
            scaler.step(optimizer)


def test_scheduler_that_is_not_listed(one: perdure.Job) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with refuses("scheduler"), perdure.DataParallel(one, model, optimizer) as training:
        for _ in training.steps(2):
            model(X).sum().backward()
            optimizer.step()
            scheduler.step()


def test_slots_that_differ(tmp_path: Path, pair: Pair) -> None:
    """A slot that has changed a weight by itself ends the training in all slots, once its part is compared."""
    case = """
def after(model, optimizers, shared):
    optimizers[0].step()
    optimizers[0].zero_grad()
    if original:  # the seed of this slot is 1
        with torch.no_grad():
            model[0].weight[0, 0] += 1e-7

original = 0

def made_by(rank):
    global original
    original = rank
"""
    program = program_of(case, "made_by(job.slot)" + WITH_PERDURE.replace("steps(6)", "steps(200)"))
    said = pair.run(tmp_path, program, both_fail=True)
    assert "the weights of the slots differ in step 64:" in failure_of(said, "PerdureError")


def test_shared_objects_that_differ(tmp_path: Path, pair: Pair) -> None:
    """An average that starts with the weights of each slot's own seed is found in the first step."""
    case = """
def shared_of(model, optimizers):
    import copy
    return [copy.deepcopy(model)]
"""
    said = pair.run(tmp_path, program_of(case, WITH_PERDURE), both_fail=True)
    assert "shared= differ between the slots at the start" in failure_of(said, "UsageError")


def test_last_batch_without_samples(tmp_path: Path, pair: Pair) -> None:
    program = """
import perdure, torch
model = torch.nn.Linear(3, 2)
sampler = perdure.Sampler(job, given["length"], 4, drop_last=given["drop_last"])
perdure.DataParallel(job, model, torch.optim.SGD(model.parameters(), 0.1))
"""
    said = pair.run(tmp_path / "refused", program, both_fail=True, length=17, drop_last=False)
    assert "drop_last=True" in failure_of(said, "UsageError")
    results_of(pair.run(tmp_path / "dropped", program, length=17, drop_last=True))
    results_of(pair.run(tmp_path / "shared", program, length=18, drop_last=False))


def test_scale(tmp_path: Path, pair: Pair) -> None:
    """The number of slots cannot change."""
    case = """
def after(model, optimizers, shared):
    optimizers[0].step()
    optimizers[0].zero_grad()
    if seen == 3 and scale[0] == 0:
        import subprocess
        subprocess.run([*scale[1:], "3", "--at", "8"], check=True, capture_output=True)

def loss_of(model, x, rank, step):
    global seen
    seen = step
    return model(x).square().mean()
"""
    command = [os.environ["PERDURE_BINARY"], "scale", "--run", str(tmp_path / "run")]
    before = f"scale = [job.slot, *{command!r}]"
    program = program_of(case, before + WITH_PERDURE.replace("steps(6)", "steps(20)"))
    said = pair.run(tmp_path, program, both_fail=True)
    assert "perdure scale 2" in failure_of(said, "UsageError")


def test_forgets(one: perdure.Job) -> None:
    """After the block no hook is left, and the model is freed."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def hooks(model: Any, optimizer: Any) -> int:
        of = [model._forward_hooks, optimizer._optimizer_step_pre_hooks]
        of += [p._post_accumulate_grad_hooks for p in model.parameters() if p._post_accumulate_grad_hooks]
        return sum(map(len, of))

    with perdure.DataParallel(one, model, optimizer) as training:
        assert hooks(model, optimizer) == 6
        for _ in training.steps(2):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert hooks(model, optimizer) == 0
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    gone = weakref.ref(model)
    del model, optimizer, training
    gc.collect()
    assert gone() is None


def until_saved(run: Path, clock: int) -> None:
    """Wait until the checkpoint of a clock is durable."""
    while f"checkpoint of clock {clock} is durable" not in (run / "events.jsonl").read_text():
        pass


@pytest.mark.parametrize("steps", [7, 8, 9])  # one of them ends with a clock that a checkpoint ends
def test_death_after_the_end(tmp_path: Path, steps: int) -> None:
    """A process that dies after its loop is replaced, and the new one has the final model."""
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "1000", "--recovery", "checkpoint:3")

    def life(job: perdure.Job, dies: bool) -> str:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        with perdure.DataParallel(job, model, optimizer) as training:
            for _ in training.steps(steps):
                model(X).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if dies:

                def die() -> None:
                    until_saved(cluster.owner.folder, job.now)
                    raise Death(hash_of(model))

                job.finish = die  # type: ignore[method-assign]
        return hash_of(model)

    def again(slot: int) -> str:
        while True:  # as a process that is started again
            with contextlib.suppress(perdure.RolledBack), cluster.join(slot) as job:
                return life(job, False)

    def dying(slot: int) -> tuple[str, str]:
        with pytest.raises(Death) as told, cluster.join(slot) as job:
            life(job, True)
        return str(told.value), again(slot)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.submit(again, 0), threads.submit(dying, 1)
        final, later = two.result()
        assert one.result() == later == final
    cluster.end()


#: Trains in the only slot of the job ``job`` for ``count`` steps, and stops the job in the step ``stop``.
TO_THE_END = """
import hashlib, os, subprocess
import perdure, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
with perdure.DataParallel(job, model, optimizer, shared=[scheduler]) as training:
    for step in training.steps(count):
        if step == stop:
            stopping = subprocess.Popen([os.environ["PERDURE_BINARY"], "stop", str(job.run_folder)])
            while '"kind":"cut"' not in (job.run_folder / "events.jsonl").read_text():
                pass
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
result = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()
"""


@pytest.mark.parametrize("how", ["clocks", "ended", "stopped", "fork"])
def test_resume(tmp_path: Path, how: str) -> None:
    """A run that was stopped, has ended or is forked continues to the same model."""

    def here(name: str, clocks: int = 1000, count: int = 20, stop: int = -1) -> Any:
        given: dict[str, Any] = {"servers": 1, "recovery": "checkpoint:4", "clocks": clocks}
        given["args"] = [*SMALL, "--keep-checkpoints", "0"]
        names: dict[str, Any] = {"stop": stop, "count": count}
        with contextlib.suppress(perdure.Stopped), perdure.start(out=tmp_path / name, **given) as names["job"]:
            exec(TO_THE_END, names)
        return names.get("result")

    def continued(name: str, *flags: str) -> str:
        end = f"\nopen({str(tmp_path / name) + '.hash'!r}, 'w').write(result)"
        program = tmp_path / f"{name}.py"
        program.write_text(
            f"import perdure\njob, stop, count = perdure.join(), -1, 20\nwith job:{indented(TO_THE_END + end)}"
        )
        execs = f"--exec={sys.executable} {program}"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [os.environ["PERDURE_BINARY"], "up", "-q", "--out", str(tmp_path / name), execs, *flags]
        subprocess.run(command, env=environment, check=True)
        return (tmp_path / f"{name}.hash").read_text()

    whole = here("whole")
    more = ("--clocks", "1000")
    run = str(tmp_path / "run")
    if how == "clocks":  # the planned end
        assert here("run", clocks=10) != whole
        assert continued("again", "--resume", run, *more) == whole
    elif how == "ended":
        assert here("run", count=12) != whole
        assert continued("again", "--resume", run, *more) == whole
    elif how == "stopped":
        assert here("run", stop=6) is None
        assert continued("again", "--resume", run) == whole
    else:
        assert here("run", clocks=10) != whole
        assert continued("again", "--fork", f"{run}@8", *more) == whole


def indented(text: str) -> str:
    return text.replace("\n", "\n    ")


@pytest.mark.parametrize("lengths", [(6, 24), (24, 6), (6, 8), (6, 6)])
def test_unequal_data(tmp_path: Path, pair: Pair, lengths: tuple[int, int]) -> None:
    """The job ends with the slot that has the least data, and all slots have made the same steps."""
    program = """
import perdure, torch
from torchdata.stateful_dataloader import StatefulDataLoader
model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
loader = StatefulDataLoader(torch.randn(given["lengths"][job.slot], 3), batch_size=2)
made = 0
with perdure.DataParallel(job, model, optimizer, state=[loader]) as training:
    for x in training.batches(loader):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        made += 1
result = [made, {name: value.tolist() for name, value in model.state_dict().items()}]
"""
    one, two = results_of(pair.run(tmp_path, program, lengths=lengths))
    assert one == two
    assert one[0] == 3


@pytest.mark.parametrize("length", [19, 18])
def test_mean_over_samples(tmp_path: Path, pair: Pair, length: int) -> None:
    """Shares of unequal size in the last batch of an epoch count by their samples."""
    program = """
import perdure, torch
from torch.utils.data import DataLoader
x = torch.arange(1.0, given["length"] + 1)
model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.fill_(0.5)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
sampler = perdure.Sampler(job, len(x), 4)
loader = sampler.loader(DataLoader(list(range(len(x))), batch_sampler=sampler))
with perdure.DataParallel(job, model, optimizer) as training:
    for _ in job.epochs(1):
        for ids in training.batches(loader):
            (model(x[ids, None]) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
result = [model.weight.item(), sampler._order(0).tolist()]
"""
    one, two = results_of(pair.run(tmp_path, program, length=length))
    assert one == two
    x, weight = torch.arange(1.0, length + 1), torch.tensor(0.5, requires_grad=True)
    for ids in torch.tensor(one[1]).split(8):
        (gradient,) = torch.autograd.grad((weight * x[ids] - 1).square().mean(), weight)
        weight = (weight - 1e-3 * gradient).detach().requires_grad_()
    assert one[0] == pytest.approx(weight.item(), rel=1e-5)


@pytest.mark.parametrize("who", ["learner", "server"])
def test_death_in_the_first_step(tmp_path: Path, who: str) -> None:
    """The checkpoint of the first clock has the initial model, although the table that distributes it is transient."""
    events = tmp_path / "storm" / "run" / "events.jsonl"

    def life(job: perdure.Job, number: int) -> Any:
        torch.manual_seed(5)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with perdure.DataParallel(job, model, optimizer) as training:
            for step in training.steps(3):
                if storm and number == 0 and step == 0:
                    until_saved(events.parent, 1)
                    while who == "server" and '"kind":"rollback"' not in events.read_text():
                        pass
                    raise Death
                model(X).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return hash_of(model)

    storm = False
    flags = ["--recovery", "checkpoint:1"]
    undisturbed = lives(tmp_path / "calm", life, 0, *flags)
    storm = True
    flags += ["--fault=kill:server:0@clock:1,300ms"] if who == "server" else []
    assert lives(tmp_path / "storm", life, 1, *flags) == undisturbed


#: The weights, with their optimizer, are too large to travel with updates.
LARGE = """
import hashlib, json, sys
import perdure, torch
torch.set_num_threads(1)
with perdure.start() as job:
    torch.manual_seed(4)
    model = torch.nn.Linear(500, 500)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    stored = set()
    with perdure.DataParallel(job, model, optimizer, copy=False) as training:
        for step in training.steps(20):
            model(torch.randn(8, 500)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            stored |= {path.name.split("-")[1] for path in job.run_folder.rglob("state-*")}
    digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump([digest, sorted(stored)], f)
"""


def test_one_copy(tmp_path: Path) -> None:
    """Only the first slot saves the weights with a checkpoint, and all slots continue with them."""
    flags = (*PRELOAD, "--recovery", "checkpoint:4")
    (first, stored), (second, _) = launch(tmp_path, "calm", LARGE, *flags)
    assert (first, stored) == (second, ["s00000"])
    faults = [f"--fault=kill:{of}" for of in ("worker:1@clock:6", "worker:0@clock:9", "worker:*@clock:14")]
    got = launch(tmp_path, "storm", LARGE, *flags, *faults)
    assert [of[0] for of in got] == [first, first]
    assert kills(tmp_path, "storm") >= len(faults)
