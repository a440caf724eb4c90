"""Ray Train with perdure.ray: real clusters on this machine, whose workers are killed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure

pytest.importorskip("torch")
pytest.importorskip("ray")
importlib.import_module("perdure.ray")

#: Trains once per argument, in one cluster, and prints the results as a line of JSON.
PROGRAM = """
import hashlib, json, os, signal, sys, tempfile
import numpy as np
import ray, torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import perdure
from perdure.ray import PerdureConfig

LENGTH, EPOCHS = 97, 2


def train(given):
    name = given["name"]
    x = torch.randn(LENGTH, 8, generator=torch.Generator().manual_seed(7))
    data = list(zip(range(LENGTH), x, x.sin().sum(1, keepdim=True)))
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    open(f"{name}.started.{ray.train.get_context().get_world_rank()}.{os.getpid()}", "w").close()
    job = perdure.start()
    torch.manual_seed(100 + job.slot)
    counts = job.table("counts", EPOCHS * LENGTH, dim=1, rule=perdure.Add())
    sampler = perdure.Sampler(job, LENGTH, 6)
    loader = sampler.loader(torch.utils.data.DataLoader(data, batch_sampler=sampler))
    if given["how"] == "parallel":
        trainer = perdure.ServerOptimizer(job, model, torch.optim.Adam(model.parameters(), 1e-2), state=[sampler])
    else:
        inner = torch.optim.AdamW(model.parameters(), 1e-2)
        trainer = perdure.DiLoCo(job, model, inner=inner, sync_every=4, state=[sampler])
    step = 0
    with trainer as p:
        for epoch in job.epochs(EPOCHS):
            for ids, x, y in loader:
                clock = int(job.now)
                step += 1
                if [job.slot, clock] in given["deaths"]:
                    mark = f"{name}.died.{job.slot}.{clock}"
                    if not os.path.exists(mark):
                        open(mark, "w").close()
                        os.kill(os.getpid(), signal.SIGKILL)
                counts.inc(epoch * LENGTH + ids.numpy(), np.ones((len(ids), 1), np.float32))
                loss = (model(x) - y).square().mean()
                loss.backward()
                if given["how"] == "parallel":
                    p.step()
                    p.zero_grad()
                else:
                    inner.step()
                    inner.zero_grad()
            if job.slot == 0:
                with tempfile.TemporaryDirectory() as folder:
                    torch.save(model.state_dict(), f"{folder}/model.pt")
                    ray.train.report({"epoch": epoch, "loss": loss.item()}, Checkpoint.from_directory(folder))
            else:
                ray.train.report({"epoch": epoch, "loss": loss.item()})
        if given["how"] == "diloco" and p._steps:
            p.sync()  # the counts of the last steps
        counted = counts.get_run(0, EPOCHS * LENGTH).ravel().tolist()
    weights = b"".join(v.numpy().tobytes() for v in model.state_dict().values())
    return {"hash": hashlib.sha256(weights).hexdigest(), "counts": counted}


ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
for argument in sys.argv[1:]:
    given = json.loads(argument) | {"name": os.path.abspath(json.loads(argument)["name"])}
    result = TorchTrainer(
        train,
        train_loop_config=given,
        torch_config=PerdureConfig(out=f"{given['name']}.run", args=["--shards", "2", *given["args"]]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=os.path.abspath("ray"), failure_config=FailureConfig(max_failures=-1)),
    ).fit()
    with result.checkpoint.as_directory() as folder:
        model = torch.load(f"{folder}/model.pt")
    weights = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.values())).hexdigest()
    print("result", json.dumps(result.return_value | {"metrics": result.metrics, "checkpoint": weights}))
"""


def run(folder: Path, program: str, *settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a program with a cluster of its own."""
    (folder / "train.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(folder / "train.py"), *map(json.dumps, settings)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def results(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return the results that a program has printed."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if line[:7] == "result "]


def test_kills(tmp_path: Path) -> None:
    """Ray replaces only the workers that have died. The model is that of the calm run, and each sample counts once."""
    settings: list[dict[str, Any]] = []
    for how, deaths in ("parallel", [[1, 3], [0, 12]]), ("diloco", [[1, 1], [0, 4]]):
        settings += [
            {"how": how, "name": f"{how}.calm", "deaths": [], "args": []},
            {"how": how, "name": f"{how}.storm", "deaths": deaths, "args": ["--fault=kill:server:0@clock:3"]},
        ]
    found = results(run(tmp_path, PROGRAM, *settings))
    for calm, storm, of in zip(found[::2], found[1::2], settings[1::2], strict=True):
        assert storm == calm
        assert set(storm["counts"]) == {1.0}
        assert storm["metrics"]["epoch"] == 1
        name = of["name"]
        assert [len(list(tmp_path.glob(f"{name}.started.{rank}.*"))) for rank in range(2)] == [2, 2]
        assert (tmp_path / f"{name}.run" / "events.jsonl").read_text().count('"fault"') == 1
        assert (tmp_path / f"{name}.run" / "summary.json").exists()


#: Trains with functions that cannot succeed, and prints the errors.
REFUSED = """
import json, os
import ray, torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import perdure
from perdure.ray import PerdureConfig


def wraps():
    perdure.start()
    ray.train.torch.prepare_model(torch.nn.Linear(1, 1))


def fails():
    open(f"{os.environ['FOLDER']}/failing.{os.getpid()}", "w").close()
    with perdure.start() as job:
        table = job.table("w", rows=2, dim=1, rule=perdure.SGD(0.1))
        if job.now == 0:
            job.clock()
        raise RuntimeError("wrong data")


def fails_late():
    with perdure.start() as job:
        job.table("w", rows=2, dim=1, rule=perdure.SGD(0.1))
    raise OSError("no room for the model")


def alone():
    pass


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
os.chdir(os.environ["FOLDER"])
for train, workers in (wraps, 1), (fails, 1), (fails_late, 1), (alone, 1), (alone, (1, 1)):
    try:
        TorchTrainer(
            train,
            torch_config=PerdureConfig(out=f"{train.__name__}.{workers}.run", args=["--shards", "2"]),
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(storage_path=os.path.abspath("ray"), failure_config=FailureConfig(max_failures=-1)),
        ).fit()
    except Exception as error:
        print("result", json.dumps(str(error)))
"""


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training function that cannot succeed ends the run, although Ray's failures are not limited."""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    errors = results(run(tmp_path, REFUSED))
    for error, expected in zip(
        errors,
        [
            "worker 0: prepare_model would wrap the model in Ray's DDP",
            "worker 0 has failed 5 times at clock 1: RuntimeError: wrong data",
            "worker 0: after the end of the job: OSError: no room for the model",
            "worker 0: the training function has returned without a call of perdure.start()",
            "PerdureConfig needs a fixed number of workers: use ScalingConfig(num_workers=N)",
        ],
        strict=True,
    ):
        assert expected in error
    assert len(list(tmp_path.glob("failing.*"))) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda of: of.report({}, object()), "only the worker of rank 0 may report a checkpoint"),
        (lambda of: of.get_dataset_shard(None), "has no position that a new worker could continue from"),
        (lambda of: of.barrier(), "barrier would wait for a worker"),
        (lambda of: of.broadcast_from_rank_zero(1), "broadcast_from_rank_zero would wait for a worker"),
    ],
)
def test_functions(monkeypatch: pytest.MonkeyPatch, call: Any, message: str) -> None:
    """Functions that would wait for a replaced worker, or lose a position, are refused."""
    monkeypatch.setattr(perdure.ray._State, "rank", 1)
    with pytest.raises(perdure.UsageError, match=message):
        call(perdure.ray._TrainFnUtils())
    perdure.ray._TrainFnUtils().report({"loss": 1.0})  # of rank 0 only


def test_without_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution import context

    monkeypatch.setattr(context, "_train_context", object())
    with pytest.raises(perdure.UsageError, match="PerdureConfig"):
        perdure.start()


def test_settings() -> None:
    """A job that exists has its own settings."""
    with pytest.raises(perdure.UsageError, match="the job at the coordinator exists"):
        perdure.ray.PerdureConfig(coordinator="10.0.0.5:7000", servers=2)
