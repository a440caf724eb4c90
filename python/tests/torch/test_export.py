"""Exported models load strictly into the model, and both ways to export write the same tensors."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, SMALL, Cluster
from launched import Death, kills, launch, lives
from test_refused import refuses, second

import perdure
from perdure import _state

torch = pytest.importorskip("torch")
load_file = pytest.importorskip("safetensors.torch").load_file
safe_open = pytest.importorskip("safetensors").safe_open
nn = torch.nn

#: A program whose model has tied and frozen parameters, bfloat16 and float16, and buffers of all kinds. Both slots of a
#: job run it; slot 0 compiles the model.
PROGRAM = """
import json, os, sys
import perdure, torch
from torch import nn
from safetensors.torch import load_file

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.brain = nn.Linear(4, 4).bfloat16()
        self.small = nn.Linear(4, 4).half()
        self.fixed = nn.Linear(4, 4).bfloat16().requires_grad_(False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("empty", torch.zeros(0, 2))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)

    def forward(self, x):
        self.steps += 1
        x = self.norm(self.embed(x))
        x = self.brain(x.bfloat16()) + self.small(x.half()).bfloat16() + self.fixed(x.bfloat16())
        return self.head(x.float())

how, target = sys.argv[1].rsplit(".", 1)[-1], sys.argv[1]
slot = int(os.environ["PERDURE_SLOT"])
torch.manual_seed(slot)
model = Model()
job = perdure.start()
data = torch.arange(56).reshape(14, 4) % 7
trained = torch.compile(model, backend="eager") if slot == 0 else model

def step(i):
    x = data[(i * 2 + slot) % 14]
    torch.nn.functional.cross_entropy(trained(x), (x + 1) % 7).backward()

if "diloco" in target:
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    with perdure.DiLoCo(job, trained, inner, sync_every=3) as p:
        for i in range(40):
            step(i)
            inner.step()
            inner.zero_grad()
            if job.now == 7 and not p.synced:
                p.export(f"{target}.{slot}.during")
elif "own" in target:
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    with perdure.DataParallel(job, trained, adam) as p:
        for i in p.steps(25):
            step(i)
            adam.step()
            adam.zero_grad()
else:
    with perdure.ServerOptimizer(job, trained, perdure.Adam(1e-2)) as p:
        while job.now < 25:
            step(job.now)
            p.step()
            p.zero_grad()
p.export(f"{target}.{slot}.safetensors")
found = load_file(f"{target}.{slot}.safetensors")
other = Model()
other.load_state_dict(found, strict=True)
assert other.head.weight is other.embed.weight
for name, value in model.state_dict().items():
    assert found[name].dtype == value.dtype and found[name].equal(value), name
    assert other.state_dict()[name].equal(value), name
with open(f"{target}.{slot}", "w") as of:
    json.dump(sorted(found), of)
"""


def perdure_export(run: Path, to: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [os.environ["PERDURE_BINARY"], "export", str(run), "-o", str(to), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def exported(run: Path, to: Path) -> dict[str, Any]:
    done = perdure_export(run, to)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = load_file(to)
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def bits(t: Any) -> Any:
        return t.reshape(-1).view(torch.uint8)

    return a.keys() == b.keys() and all(
        (a[k].dtype, a[k].shape) == (b[k].dtype, b[k].shape) and bits(a[k]).equal(bits(b[k])) for k in a
    )


@pytest.mark.parametrize("how", ["own", "parallel", "diloco"])
def test_export_after_kills(tmp_path: Path, how: str) -> None:
    faults = [f"--fault=kill:{who}@clock:{at}" for who, at in (("worker:0", 4), ("server:1", 6), ("worker:1", 8))]
    names = launch(tmp_path, how, PROGRAM, *faults)
    assert kills(tmp_path, how) == 3
    assert names[0] == names[1]
    assert "hidden" not in names[0]
    assert {"embed.weight", "head.weight", "norm.num_batches_tracked", "empty", "fixed.bias", "flags"} <= set(names[0])
    by_go = exported(tmp_path / f"{how}.run", tmp_path / "go.safetensors")
    for slot in range(2):
        assert same(by_go, load_file(tmp_path / f"{how}.{slot}.safetensors"))
    assert by_go["brain.weight"].dtype == torch.bfloat16
    if how == "diloco":  # between outer steps all slots export the weights of the last one
        assert same(*(load_file(tmp_path / f"{how}.{slot}.during") for slot in range(2)))
    described = json.loads((tmp_path / f"{how}.run" / "summary.json").read_text())["model_sha256"]
    said = json.loads(perdure_export(tmp_path / f"{how}.run", tmp_path / "again", "--json").stdout)
    assert said["notes"] == []
    assert described is None if how == "own" else said["model_sha256"] == described


def small(*, compiled: bool = False, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return torch.compile(model, backend="eager") if compiled else model


def train(p: Any, model: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(4, 4)).sum().backward()
        p.step()
        p.zero_grad()


def test_compiled_then_plain(tmp_path: Path) -> None:
    """A replacement process may compile the model or not, and the names never have a prefix."""

    def life(job: perdure.Job, number: int) -> None:
        model = small(compiled=number == 0, seed=number)
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        train(p, model, 3)
        p.export(tmp_path / f"{number}.safetensors")
        if number == 0:
            raise Death
        p.finish()
        p.export(str(tmp_path / "1.safetensors"))
        assert job.now == 7 or job.ended

    lives(tmp_path, life, 1)
    plain = small(seed=5)
    for number in range(2):
        plain.load_state_dict(load_file(tmp_path / f"{number}.safetensors"), strict=True)
        assert int(plain[1].num_batches_tracked) == 3 + 3 * number
    assert not list(tmp_path.glob(".*"))


def test_export_of_a_checkpoint(tmp_path: Path) -> None:
    """The checkpoint of a stopped run has the model of its clock."""
    model = small()
    args = [*SMALL, "--keep-checkpoints", "0"]
    job = perdure.start(out=tmp_path / "run", recovery="resend:4", args=args)
    p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
    seen = {}
    for _ in range(12):
        train(p, model, 1)
        p.export(tmp_path / "p.safetensors")
        seen[job.now] = load_file(tmp_path / "p.safetensors")
    stop(job)
    done = perdure_export(tmp_path / "run", tmp_path / "m", "--json")
    assert done.returncode == 0, done.stderr
    assert same(load_file(tmp_path / "m"), seen[json.loads(done.stdout)["clock"]])
    small(seed=9).load_state_dict(load_file(tmp_path / "m"), strict=True)
    older = [os.environ["PERDURE_BINARY"], "checkpoint", "export", f"{tmp_path / 'run'}@4", "-o", str(tmp_path / "4")]
    subprocess.run(older, check=True)
    assert same(load_file(tmp_path / "4"), seen[4])


def own_program(job: perdure.Job, model: Any) -> Any:
    """Return a training that keeps its optimizer, and a function that makes steps up to a number."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    p = perdure.DataParallel(job, model, optimizer)

    def train_to(count: int, after: Callable[[int], None] = lambda _: None) -> None:
        for i in p.steps(count):
            model(torch.ones(4, model[0].in_features)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            after(i + 1)

    return p, train_to


def stop(job: perdure.Job) -> None:
    """Kill this process's part of a job, and stop the rest."""
    assert job._owner is not None
    job._owner.process.terminate()
    job._owner.process.wait()
    job._agent.process.kill()
    job._agent.process.wait()


@pytest.mark.parametrize("width", [4, 400])
def test_export_of_a_checkpoint_of_own_optimizers(tmp_path: Path, width: int) -> None:
    """The checkpoint of a stopped run has the weights from before its last step, and says so. A large state is a file
    of its own, whose damage is found."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    job = perdure.start(out=tmp_path / "run", recovery="resend:4", args=[*SMALL, "--keep-checkpoints", "0"])
    p, train_to = own_program(job, model)
    seen: dict[int, Any] = {}

    def keep(step: int) -> None:
        p.export(tmp_path / "p.safetensors")
        seen[step] = load_file(tmp_path / "p.safetensors")

    train_to(12, keep)
    stop(job)
    done = perdure_export(tmp_path / "run", tmp_path / "m", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    step = said["clock"] - 2  # clock 0 distributes the weights, and the clock's own step is missing
    assert [note.split(":")[0] for note in said["notes"]] == [f"the weights are those after {step} steps"]
    assert same(load_file(tmp_path / "m"), seen[step])
    with safe_open(tmp_path / "m", "pt") as of:
        assert of.metadata()["steps"] == str(step)
    states = sorted((tmp_path / "run" / "checkpoint").glob("state-*"))
    assert bool(states) == (width > 4)
    for state in states[-1:]:
        content = bytearray(state.read_bytes())
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
        newest = [os.environ["PERDURE_BINARY"], "checkpoint", "export", f"{tmp_path / 'run'}@{said['clock']}"]
        done = subprocess.run([*newest, "-o", str(tmp_path / "n")], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert (done.stderr.count("\n"), state.name in done.stderr) == (1, True)
        state.unlink()
        done = subprocess.run([*newest, "-o", str(tmp_path / "n")], capture_output=True, text=True, check=False)
        assert (done.stderr.count("\n"), state.name in done.stderr) == (1, True)
        assert not (tmp_path / "n").exists()


def test_export_of_own_optimizers_after_the_last_clock(tmp_path: Path) -> None:
    """If the job's clocks end it, only the program has the final weights. The export says that it has earlier ones."""
    model = small()
    with perdure.start(out=tmp_path / "run", clocks=6, args=SMALL) as job:
        p, train_to = own_program(job, model)
        before: dict[int, Any] = {}

        def keep(step: int) -> None:
            p.export(tmp_path / "p")
            before[step] = load_file(tmp_path / "p")

        with p:
            train_to(20, keep)
    done = perdure_export(tmp_path / "run", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert "the weights are those after 4 steps" in done.stdout
    assert same(load_file(tmp_path / "m"), before[4])


def saved_state() -> Any:
    """Return a state of the form that DataParallel saves, with values that JSON does not have."""
    half = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    own = {"grads": [True, False], "random": {"numpy": np.arange(3, dtype=np.uint32)}, "step": 41, "over": True}
    shared = {
        "optimizers": [{"state": {0: {"exp_avg": torch.ones(5)}}, "name": 'NaN "\\" Infinity', "pair": (1, b"xyz")}],
        "objects": [{"best": float("inf"), "worst": -float("inf"), "last": [float("nan")]}],
        "parameters": [half, nn.Parameter(torch.tensor([0.5, -0.25])), torch.empty(0, 3)],
    }
    buffers = [torch.tensor(7), torch.tensor([True, False, True]), torch.tensor([1j])]
    return {"own": own, "shared": shared, "buffers": buffers}


def test_golden_state() -> None:
    """The state that the Go tests decode. To write it again, delete it and run this test twice."""
    golden = ROOT / "internal" / "run" / "modelfile" / "testdata" / "saved.state"
    encoded = _state.Encoded(saved_state())
    data = np.empty(encoded.size, np.uint8)
    encoded.write(data)
    if not golden.exists():
        golden.write_bytes(data.tobytes())
        pytest.fail(f"wrote {golden}")
    assert golden.read_bytes() == data.tobytes()


def test_values_that_the_job_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large frozen parameters are only in the program, whose export is complete. `perdure export` names them."""
    monkeypatch.setattr("perdure._frozen.HANDED", 0)
    model = small()
    model[0].requires_grad_(False)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        train(p, model, 2)
        p.finish()
    p.export(tmp_path / "p")
    small(seed=1).load_state_dict(load_file(tmp_path / "p"), strict=True)
    done = perdure_export(tmp_path / "run", tmp_path / "m")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "does not have the values of 0.weight, 0.bias" in done.stderr
    assert not (tmp_path / "m").exists()
    done = perdure_export(tmp_path / "run", tmp_path / "m", "--partial")
    assert done.returncode == 0
    assert "omitted: 0.weight" in done.stdout + done.stderr
    whole, part = load_file(tmp_path / "p"), load_file(tmp_path / "m")
    assert same(part, {k: v for k, v in whole.items() if not k.startswith("0.")})


def test_extra_state(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, _: Any) -> None:
            pass

    model = nn.Sequential(Extra(2, 2), nn.Linear(2, 1))
    model.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        with refuses(r"^export cannot write 0\._extra_state, wave, since .* pass partial=True"):
            p.export(tmp_path / "p")
        assert not list(tmp_path.glob("*p"))
        p.export(tmp_path / "p", partial=True)
        assert sorted(load_file(tmp_path / "p")) == ["0.bias", "0.weight", "1.bias", "1.weight"]
        p.finish()


def test_frozen_parameters_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has the initial values of a teacher that the program changes, so export names it."""
    model = small()
    model[0].requires_grad_(False)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[nn.ModuleList([model[0]])])
        with torch.no_grad():
            model[0].bias.mul_(0.5)
        train(p, model, 1)
        with refuses(r"^export cannot write 0\.bias, since"):
            p.export(tmp_path / "p")
        p.export(tmp_path / "p", partial=True)
        assert "0.weight" in load_file(tmp_path / "p")
        monkeypatch.setitem(sys.modules, "safetensors", None)
        with refuses(r"^export needs the package safetensors"):
            p.export(tmp_path / "p", partial=True)
        p.finish()


def test_a_full_disk(tmp_path: Path) -> None:
    """An export that fails leaves the earlier file as it was, and no other one."""
    model = nn.Linear(300, 300)
    to = tmp_path / "m" / "model.safetensors"
    to.parent.mkdir()
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        for before in (None, b"earlier"):
            if before is not None:
                to.write_bytes(before)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            try:
                with pytest.raises(OSError, match=r"cannot write .*model\.safetensors: "):
                    p.export(to)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert [f.name for f in to.parent.iterdir()] == ([to.name] if before else [])
            assert before is None or to.read_bytes() == before
        with pytest.raises(OSError, match="No such file"):
            p.export(tmp_path / "none" / "model.safetensors")
        p.export(to)
        assert len(load_file(to)) == 2
        p.finish()
    truncated = (tmp_path / "run" / "model.safetensors").read_bytes()[:-1000]
    (tmp_path / "run" / "model.safetensors").write_bytes(truncated)
    done = perdure_export(tmp_path / "run", tmp_path / "go")
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "go").exists()


def test_one_slot_compiles(cluster: Cluster) -> None:
    """Slots agree on the names whether they compile the model or not. A step proves it."""
    jobs = [cluster.join(0), cluster.join(1)]
    wrong: list[BaseException] = []

    def work(job: perdure.Job) -> None:
        try:
            model = small(compiled=job.slot == 0, seed=job.slot)
            p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
            train(p, model, 2)
            p.export(cluster.folder / f"{job.slot}.safetensors")
            p.finish()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    first, other = (load_file(cluster.folder / f"{slot}.safetensors") for slot in range(2))
    assert same(first, other)


def freeze(model: Any, layer: int) -> None:
    model[layer].weight.requires_grad_(False)


def tie(model: Any, layer: int) -> None:
    model[layer].weight = model[0].weight


def buffer(model: Any, layer: int) -> None:
    model.register_buffer("n", torch.zeros(2), persistent=layer == 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (freeze, "has a different name, shape or type for 1.weight of type float32 and shape [2, 2]: 1.bias of type"),
        (tie, "has 0.weight in its state_dict as 0.weight, 1.weight, and this one as 0.weight, 2.weight; all slots"),
        (buffer, "has n in its state_dict as n, and this one as no name; all slots must use the same model"),
    ],
)
def test_other_description(cluster: Cluster, change: Callable[[Any, int], None], said: str) -> None:
    """The first difference is named although both models have as many rows in each table."""
    models = [nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))) for _ in range(2)]
    for layer, model in enumerate(models, 1):
        change(model, layer)
    assert said in second(cluster, *models)


def test_a_larger_model_later(tmp_path: Path) -> None:
    """The error of a replacement process whose model has other sizes names the first difference."""

    def life(job: perdure.Job, number: int) -> None:
        model = nn.Linear(2, 3 + 2000 * number)
        if number == 0:
            train(perdure.ServerOptimizer(job, model, perdure.SGD(0.1)), lambda _: model(torch.ones(1, 2)), 1)
            raise Death
        with refuses(
            r"shape or type for weight of type float32 and shape \[2003, 2\]: weight of type float32 and shape"
        ):
            perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        job.finish()

    lives(tmp_path, life, 1)
