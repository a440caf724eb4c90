"""Measures in Weights & Biases, MLflow and TensorBoard, as one run through kills. All of them work offline."""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import kills, launch

import perdure
from perdure import UsageError

pytest.importorskip("torch")
wandb = pytest.importorskip("wandb")
mlflow = pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")

#: Logs the loss of each step to all services, and then ends with the argument's error, if there is one.
TRAIN = """
import json, os, sys, time
import torch
import perdure
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": "file:mlruns",
               "MLFLOW_ALLOW_FILE_STORE": "true"}
job = perdure.start()
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
losses = []
with (
    perdure.track(job, "wandb", project="p", dir=".", config={"rate": 0.1}) as board,
    perdure.track(job, "mlflow", name="measured", experiment="e", tags={"team": "test"}) as flow,
    perdure.track(job, "tensorboard", log_dir="tb") as tensors,
    perdure.ServerOptimizer(job, model, torch.optim.SGD(model.parameters(), 0.01)) as p,
):
    for step in range(job.now, 60):
        loss = (model(torch.full((2, 4), 1.0 + job.slot)) - 3).square().mean()
        loss.backward()
        time.sleep(0.1)
        for to in (board, flow, tensors):
            to.log({"loss": loss.item()})
            to.log({"rate": 0.1})
        p.step()
        p.zero_grad()
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump({"logs": board.run is not None, "id": job.spec["id"]}, f)
"""


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a file in the log format of LevelDB, after a head of 7 bytes. A last part may be missing."""
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or last
            yield record
            record = b""


def of_wandb(folder: Path, name: str) -> tuple[list[tuple[int, dict[str, float]]], list[int]]:
    """Return the steps with their values that offline runs contain, in order, and their exit codes."""
    proto = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows, codes = [], []
    for file in sorted((folder / "wandb").glob(f"offline-run-*/run-{name}.wandb")):
        for data in records_of(file):
            record = proto.Record()
            record.ParseFromString(data)
            if record.HasField("exit"):
                codes.append(record.exit.exit_code)
            if record.HasField("history"):
                values = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                rows.append((int(values.pop("_step")), {k: v for k, v in values.items() if k[0] != "_"}))
    return rows, codes


def of_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, list[tuple[int, float]]]]:
    """Return the only run, and the steps and values of each measure."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(f"file:{folder / 'mlruns'}")
    [run] = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    history = {k: client.get_metric_history(run.info.run_id, k) for k in run.data.metrics}
    return run, {k: [(m.step, m.value) for m in h] for k, h in history.items()}


def of_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(folder / "tb"), size_guidance={"scalars": 0})
    read.Reload()
    return {k: [(e.step, e.value) for e in read.Scalars(k)] for k in read.Tags()["scalars"]}


@pytest.mark.parametrize("recovery", ["resend:10", "checkpoint:7"])  # without and with rollbacks
def test_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovery: str) -> None:
    """Each step is logged once, with the values of an undisturbed run, whatever dies."""
    of: dict[str, Any] = {}
    faults = [f"--fault=kill:{who}@clock:{at}" for who, at in (("worker:0", 15), ("server:0", 30), ("worker:0", 45))]
    for name, more in ("calm", []), ("killed", faults):
        (folder := tmp_path / name).mkdir()
        told = launch(folder, "run", TRAIN, f"--recovery={recovery}", *more)
        assert [slot["logs"] for slot in told] == [True, False]
        of[name] = of_wandb(folder, told[0]["id"]), of_mlflow(folder, monkeypatch), of_tensorboard(folder)
    assert kills(tmp_path / "killed", "run") == 3
    calm = of["calm"][0][0]
    assert [step for step, _ in calm] == list(range(1, 60))

    rows, codes = of["killed"][0]
    got: dict[int, dict[str, float]] = {}
    for step, values in rows:  # those of the last second before a kill may be missing, and some steps are repeated
        got[step] = values | got.get(step, {})
    assert {s: {k: v for k, v in got[s].items() if k[:8] != "perdure/"} for s in got} == {s: dict(calm)[s] for s in got}
    assert {*range(46, 60)} <= got.keys()
    assert codes[-1] == 0

    run, measures = of["killed"][1]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "measured"
    assert run.data.tags["team"] == "test"
    assert measures["loss"] == of["calm"][1][1]["loss"]
    assert Counter(step for step, _ in measures["rate"]) == Counter(range(1, 60))

    for values in (measures, of["killed"][2], {"perdure/restarts": [*got.values()]}):
        assert values.get("perdure/restarts"), values
    losses = dict(of["killed"][2]["loss"])
    assert losses == {step: value for step, value in of["calm"][2]["loss"] if step in losses}
    assert {*range(46, 60)} <= losses.keys()
    assert ("perdure/rollbacks" in of["killed"][2]) == (recovery[0] == "c")


def test_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose process fails has failed; one that another process continues has not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with perdure.start(servers=1, recovery="none") as job:
        for error, status, code in (
            (KeyboardInterrupt(), "KILLED", 1),
            (ValueError(), "FAILED", 1),
            (SystemExit(0), "FINISHED", 0),
        ):
            with (
                pytest.raises(type(error)),
                perdure.track(job, "mlflow", experiment="e") as flow,
                perdure.track(job, "wandb", project="p", id="w", dir=".") as board,
            ):
                board.log({"a": 1.0})
                flow.log({"a": 1.0})
                raise error
            with pytest.raises(UsageError, match="has ended"):
                flow.log({"a": 1.0})
            assert of_mlflow(tmp_path, monkeypatch)[0].info.status == status
            assert of_wandb(tmp_path, "w")[1][-1] == code
        with (
            perdure.track(job, "mlflow", name="back", experiment="e2") as flow,
            perdure.track(job, "tensorboard", log_dir="tb") as tensors,
        ):
            for step, value in (1, 1.0), (2, 2.0), (1, 1.0), (2, 3.0), (3, 3.0):  # after a rollback
                flow.log({"a": value}, step=step)
                tensors.log({"a": value}, step=step)
            client, run = mlflow.MlflowClient(), flow.run.info.run_id
        assert [(m.step, m.value) for m in client.get_metric_history(run, "a")] == [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert of_tensorboard(tmp_path)["a"] == [(1, 1.0), (2, 3.0), (3, 3.0)]
        with pytest.raises(UsageError, match=r"unknown service 'comet': choose wandb, mlflow, tensorboard"):
            perdure.track(job, "comet")
        monkeypatch.setitem(__import__("sys").modules, "wandb", None)
        with pytest.raises(UsageError, match="pip install wandb"):
            perdure.track(job, "wandb")
    assert not os.environ.get("WANDB_RUN_ID")
