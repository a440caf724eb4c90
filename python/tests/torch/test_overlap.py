"""Outer steps that overlap with inner steps: deaths, and the time of arrival, do not change the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Cluster

import perdure
from perdure import _state

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

nn = torch.nn
H, TAU = 5, 3


class Training:
    """A small training with one slot."""

    def __init__(self, job: perdure.Job, dtype: Any = torch.float32, width: int = 8, **how: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1)).to(dtype)
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(9)).to(dtype)
        self.inner = torch.optim.SGD(self.model.parameters(), 0.05)
        self.steps = 0
        how = {"sync_every": H, "overlap": TAU, "outer": perdure.SGD(1.0)} | how
        self.diloco = perdure.DiLoCo(job, self.model, self.inner, **how)

    def step(self) -> None:
        x = self.x[self.steps % 8 * 8 :][:8]
        self.steps += 1
        self.inner.zero_grad()
        (self.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        self.inner.step()

    def weights(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.mark.parametrize("overlap", [0, TAU])
def test_waiting_is_reported(job: perdure.Job, monkeypatch: pytest.MonkeyPatch, overlap: int) -> None:
    reported: list[float] = []
    report = job._report_waited

    def both(seconds: float) -> None:
        report(seconds)  # the agent accepts it
        reported.append(seconds)

    monkeypatch.setattr(job, "_report_waited", both)
    t = Training(job, overlap=overlap)
    for _ in range(2 * H + TAU):
        t.step()
    assert reported[0] == 0
    assert len(reported) == (5 if overlap else 3)
    assert sum(reported) == pytest.approx(t.diloco.waited)


@pytest.mark.parametrize("mix", [None, 0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_computed_by_hand(job: perdure.Job, dtype: Any, mix: float | None) -> None:
    t = Training(job, dtype, mix=mix)
    first = [w.float() for w in t.weights()]
    added = [torch.zeros_like(w) for w in first]
    base, sent, shared = list(first), list(first), list(first)
    for step in range(1, 4 * H):
        before = t.weights()
        t.step()
        now = t.weights()
        if step % H == 0:
            sent = [w.float() for w in now]
            added = [a - (b.to(dtype).float() - s) for a, b, s in zip(added, base, sent, strict=True)]
            shared = [a + f for a, f in zip(added, first, strict=True)]
        elif step > H and step % H == TAU:
            # SGD computes w - rate * gradient: repeat it for the weights before the merge.
            local = [w.add(p.grad, alpha=-0.05).float() for w, p in zip(before, t.model.parameters(), strict=True)]
            base = shared if mix is None else [torch.lerp(w, s, mix) for w, s in zip(shared, sent, strict=True)]
            factor = 1.0 if mix is None else mix
            merged = [(w - s) * factor + b for w, s, b in zip(local, sent, base, strict=True)]
            assert all(torch.equal(a, b.to(dtype)) for a, b in zip(now, merged, strict=True)), step
    t.diloco.finish()


def test_idle_slot_sends_nothing_twice(job: perdure.Job) -> None:
    t = Training(job)
    for _ in range(H):
        t.step()
    for group in t.inner.param_groups:
        group["lr"] = 0.0
    job._asked = True  # the program decides by the clock
    for _ in range(2 * H):
        t.step()
    t.diloco._merge()
    shared = [w.clone() for w in t.weights()]
    for _ in range(2 * H):
        t.step()
        assert all(map(torch.equal, t.weights(), shared))
    t.diloco.finish()
    assert all(map(torch.equal, t.weights(), shared))


def late(t: Training, patch: pytest.MonkeyPatch, job: perdure.Job) -> None:
    """Let each clock end only when the program waits for its result."""
    merging = threading.Event()
    merge, end = t.diloco._merge, job._end_clock

    def merges() -> bool:
        merging.set()
        try:
            return merge()
        finally:
            merging.clear()

    def ends() -> int:
        if threading.current_thread() is not threading.main_thread():
            assert merging.wait(60)
        return end()

    patch.setattr(t.diloco, "_merge", merges)
    patch.setattr(job, "_end_clock", ends)


def early(t: Training, patch: pytest.MonkeyPatch, job: perdure.Job) -> None:
    """Let each clock end, and its result arrive, before the next step."""
    begin = t.diloco._begin_exchange

    def begins(weight: float | None) -> None:
        begin(weight)
        assert job._exchange is not None
        job._exchange.wait()

    patch.setattr(t.diloco, "_begin_exchange", begins)


@pytest.mark.parametrize("mix", [None, 0.25])
def test_same_model_early_and_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mix: float | None) -> None:
    found = []
    for number, arrives in enumerate((late, early)):
        with perdure.start(out=tmp_path / str(number), args=SMALL) as job, monkeypatch.context() as patch:
            t = Training(job, mix=mix)
            arrives(t, patch, job)
            with t.diloco:
                for _ in range(4 * H + 2):  # it ends in a window
                    t.step()
            found.append(t.weights())
    assert all(map(torch.equal, *found))


def test_program_in_a_window(tmp_path: Path, job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls before the clock has ended wait for its end, and belong to the next clock."""
    counts = job.table("counts", 8, dim=1, rule=perdure.Add())
    t = Training(job)
    go, end = threading.Event(), job._end_clock
    monkeypatch.setattr(job, "_end_clock", lambda: go.wait(60) and end())
    for _ in range(H):
        t.step()
    assert t.diloco.synced
    assert job.now == 2
    assert not job.ended
    with pytest.raises(perdure.UsageError):
        job.clock()
    job.report(train_loss=1.0)  # does not wait
    threading.Timer(0.01, go.set).start()
    counts.inc([0], [[1.0]])
    assert go.is_set()
    sent = t.weights()
    t.step()
    local = t.weights()
    with t.diloco.shared_weights():
        assert all(map(torch.allclose, t.weights(), sent))  # one slot with this rule: they differ in rounding
        shared = t.weights()
    assert all(map(torch.equal, t.weights(), local))
    t.diloco.export(tmp_path / "model.safetensors")
    safetensors = pytest.importorskip("safetensors.torch")
    written = safetensors.load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(written[name], w) for (name, _), w in zip(t.model.named_parameters(), shared, strict=True))
    assert t.diloco.sync() == 3
    assert counts.get([0]) == 1
    t.diloco.finish()


def test_error_of_the_exchange(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Training(job)

    def fails() -> int:
        raise perdure.Lost("the job is lost")

    monkeypatch.setattr(job, "_end_clock", fails)
    with pytest.raises(perdure.Lost):
        for _ in range(H + TAU):
            t.step()
    with pytest.raises(perdure.Lost):
        t.diloco.finish()
    job._exchange = None


@pytest.mark.parametrize(
    "how",
    [
        {"overlap": -1},
        {"overlap": H},
        {"overlap": 2.0},
        {"overlap": True},
        {"overlap": "2"},
        {"mix": 1.0},
        {"mix": -0.1},
        {"mix": "half"},
        {"overlap": 0, "mix": 0.5},
    ],
)
def test_invalid_settings(job: perdure.Job, how: dict[str, Any]) -> None:
    with pytest.raises(perdure.UsageError):
        Training(job, **how)


@pytest.mark.parametrize("other", [{"overlap": 0}, {"overlap": 2}, {"mix": 0.5}, {"sync_every": 6}])
def test_other_settings_in_another_slot(cluster: Cluster, other: dict[str, Any]) -> None:
    jobs = [cluster.join(0), cluster.join(1)]
    error: list[BaseException] = []

    def second() -> None:
        try:
            Training(jobs[1], **other)
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=second)
    thread.start()
    Training(jobs[0])
    thread.join()
    assert isinstance(error[0], perdure.UsageError)
    for job in jobs:
        job.close()


def held(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the clocks of exchanges end only after the event is set."""
    go, end = threading.Event(), job._end_clock
    monkeypatch.setattr(
        job, "_end_clock", lambda: (threading.current_thread() is threading.main_thread() or go.wait(60)) and end()
    )
    return go


def test_deltas_of_the_program(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program cannot change its own update after the outer step has begun."""
    table = job.table("own", 8, dim=1, rule=perdure.Add())
    t, go = Training(job), held(job, monkeypatch)
    own = table.deltas()
    own[...] = 1
    for _ in range(H):
        t.step()
    with pytest.raises(ValueError, match="read-only"):
        own[...] = 100
    go.set()
    assert (table.get_run(0, 8) == 1).all()
    t.diloco.finish()


class Other(torch.optim.SGD):
    """An optimizer of other parameters, which has a large array in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.array = state["array"]


def test_other_objects_change_in_the_window(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Other([nn.Parameter(torch.zeros(1))], 0.1)
    other.array = np.zeros(1 << 15)
    t, go = Training(job, state=[other]), held(job, monkeypatch)
    kept: list[Any] = []
    monkeypatch.setattr(job, "_save", lambda state: kept.append(state))
    for _ in range(H):
        t.step()
    other.array[:] = 1
    go.set()
    t.diloco._merge()
    room = np.empty(kept[0].size, np.uint8)
    kept[0].write(room)
    assert (_state.decode(room.data)["state"][0]["array"] == 0).all()
    t.diloco.finish()


def test_calls_wait_for_the_clock(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    t, go = Training(job), held(job, monkeypatch)
    for _ in range(H):
        t.step()
    with pytest.raises(perdure.UsageError, match="finish"):
        job.finish()
    threading.Timer(0.01, go.set).start()
    assert job.load_saved().clock == 1
    assert go.is_set()
    t.step()
    t.diloco.finish()
    job.finish()


def test_forked_process(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    t, go = Training(job), held(job, monkeypatch)
    for _ in range(H):
        t.step()
    child = os.fork()
    if child == 0:
        for call in (lambda: job.now, lambda: job.ended, lambda: job.share):
            try:
                call()
                os._exit(1)
            except perdure.Forked:
                pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    t.diloco.finish()


def test_thread_that_cannot_start(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Training(job)

    def fails(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            for _ in range(H):
                t.step()
    assert job.share == (0, 1)
    with pytest.raises(perdure.UsageError, match="interrupted"):
        t.diloco.finish()


def test_interrupted_merge(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Training(job)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perdure._overlap.Window.merge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(H + TAU):
            t.step()
    with pytest.raises(perdure.UsageError, match="interrupted"):
        t.diloco.finish()


def test_step_during_an_evaluation(job: perdure.Job) -> None:
    t = Training(job)
    with t.diloco.shared_weights(), pytest.raises(perdure.UsageError):
        t.step()
    t.step()
    t.diloco.finish()


def test_program_ends_the_job(job: perdure.Job, recwarn: pytest.WarningsRecorder) -> None:
    t = Training(job)
    with t.diloco:
        while not job.ended:
            t.step()
            if t.diloco.synced and job.now == 3:
                job.end_job()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_state_that_cannot_be_saved(job: perdure.Job) -> None:
    of = Other([nn.Parameter(torch.zeros(1))], 0.1)
    of.array = np.zeros(2)
    t = Training(job, state=[of])
    for _ in range(H - 1):
        t.step()
    of.array = object()
    with pytest.raises(perdure.UsageError, match="needs pickle"):
        t.step()
    of.array = np.zeros(2)
    t.diloco.sync()
    t.diloco.finish()


#: Two slots with a Sampler. The argument says where slot 1 kills itself, once.
SAMPLED = """
import hashlib, os, signal, sys, threading
import torch
from torch import nn
import perdure
torch.set_num_threads(1)
out, where = sys.argv[1], sys.argv[2]
job = perdure.start()
torch.manual_seed(job.slot)
first, told = not os.path.exists(out + ".killed"), threading.Event()


def die(at):
    if at == where and job.slot == 1 and first:
        open(out + ".killed", "w").close()
        told.set()
        os.kill(os.getpid(), signal.SIGTERM if at == "told" else signal.SIGKILL)


end = job._end_clock


def ends():
    clock = job._exchange.before.clock if job._exchange is not None else 0
    if clock == 3:
        die("before the clock ends")
        if where == "told" and job.slot == 1 and first:
            told.wait()
    now = end()
    if clock == 3:
        die("after the clock has ended")
    return now


job._end_clock = ends


class Seen:
    def __init__(self):
        self.of = torch.zeros(100)

    def state_dict(self):
        return {"of": self.of}

    def load_state_dict(self, state):
        self.of = state["of"]


model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
inner = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(100, 4, generator=torch.Generator().manual_seed(9))
sampler, seen = perdure.Sampler(job, 100, batch=3), Seen()
with perdure.DiLoCo(job, model, inner, sync_every=4, overlap=3, state=[seen]) as d:
    with open(f"{out}.begun.{job.slot}", "a") as f:
        f.write(f"{job.now}:{d._steps}:{d._window.open} ")
    for epoch in job.epochs(3):
        for batch in sampler:
            inner.zero_grad()
            (model(x[batch]) - x[batch].sum(1, keepdim=True)).square().mean().backward()
            seen.of[batch] += 1
            inner.step()
            if job.now == 4:
                die({0: "told" if where == "told" else "begun", 1: "in the window", 3: "after the merge"}.get(d._steps))
h = hashlib.sha256()
for v in model.state_dict().values():
    h.update(v.numpy().tobytes())
with open(f"{out}.{job.slot}", "w") as f:
    f.write(f"{h.hexdigest()} {seen.of.tolist()}")
"""


def launch(folder: Path, name: str, where: str, *flags: str) -> list[list[str]]:
    """Train with two processes. Return each one's model, and how often it has trained each sample."""
    program, out = folder / "train.py", folder / name
    program.write_text(SAMPLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--servers", "1", *SMALL, "-q"]
    done = subprocess.run(
        [*command, *flags, "--out", f"{out}.run", str(program), str(out), where],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (folder / f"{name}.run" / "logs" / "worker-1.log").read_text()
    assert (where == "") == (not Path(f"{out}.killed").exists())
    return [(folder / f"{name}.{rank}").read_text().split(" ", 1) for rank in range(2)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return launch(tmp_path_factory.mktemp("calm"), "calm", "")


def test_each_sample_counts_once(calm: list[list[str]]) -> None:
    seen = np.sum([np.array(json.loads(of)) for _, of in calm], axis=0)
    assert (seen == 3).all()
    assert calm[0][0] == calm[1][0]


@pytest.mark.parametrize(
    "where", ["before the clock ends", "after the clock has ended", "begun", "in the window", "after the merge"]
)
@pytest.mark.parametrize("recovery", ["resend:20", "checkpoint:2"])
def test_killed(tmp_path: Path, calm: list[list[str]], where: str, recovery: str) -> None:
    assert launch(tmp_path, "storm", where, "--recovery", recovery) == calm


def test_told_before_the_clock_ends(tmp_path: Path, calm: list[list[str]]) -> None:
    """On SIGTERM a process waits until the steps before its outer step are safe."""
    assert launch(tmp_path, "storm", "told") == calm
    assert (tmp_path / "storm.begun.1").read_text() == "1:0:False 4:0:True "
