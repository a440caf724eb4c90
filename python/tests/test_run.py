from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from conftest import SMALL

import perdure


def test_run(tmp_path: Path) -> None:
    with perdure.start(clocks=60, out=tmp_path / "run", args=[*SMALL, "--fault", "kill:server:0@clock:20"]) as job:
        table = job.table("w", rows=4, dim=2, rule=perdure.Add())

        def step(clock: int) -> None:
            table.inc([0], [[1, 1]])
            job.report(train_loss=1 / (clock + 1), samples=2)

        assert job.run_folder == tmp_path / "run"
        job.run(step)
        if importlib.util.find_spec("pandas") is not None:
            assert next(iter(job.events()["kind"])) == "placed"
    run = perdure.Run(tmp_path / "run")
    summary = run.summary()
    assert summary is not None
    assert summary["clocks"] == 60
    pytest.importorskip("pandas")
    events = run.events()
    assert (events["kind"] == "fault").sum() == 1
    assert {"seconds", "clock", "target", "text", "updates_lost"} <= set(events.columns)
    assert run.series()["train_loss"].min() < 0.1
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("svg")
    ax = run.plot()
    assert ax.get_ylabel() == "train loss"
    assert [line.get_label() for line in ax.get_lines()] == ["train_loss", "death"]
    ax.figure.savefig(tmp_path / "loss.svg")
    with pytest.raises(perdure.UsageError, match="'loss'; choose from seconds"):
        run.plot("loss")


def test_what_is_marked(tmp_path: Path) -> None:
    """A plot marks unplanned deaths, planned deaths once, and injected faults that kill no process."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("svg")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "series.csv").write_text("seconds,clock,train_loss\n1,10,0.5\n9,90,0.1\n")
    events = [
        (1, "detected", "worker:1", "worker:1 is dead: killed by SIGKILL"),
        (2, "fault", "server:*", "fault: kill:server:*@2s"),
        (2.1, "detected", "server:0", "server:0 is dead: killed by SIGKILL"),
        (2.2, "detected", "server:1", "server:1 is dead: killed by SIGKILL"),
        (3, "fault", "worker:1", "fault: freeze:worker:1@3s"),
        (4, "suspected", "worker:1", "worker:1 has been silent for too long"),
        (4.1, "detected", "worker:1", "worker:1 is dead: killed by SIGKILL"),
        (5, "serving", "worker:1", "worker:1 resumes at clock 50"),
        (6, "fault", "worker:0", "fault: kill:worker:0@6s"),
    ]
    keys = ("seconds", "kind", "target", "text")
    lines = [json.dumps(dict(zip(keys, event, strict=True)) | {"clock": 1}) for event in events]
    (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    ax = perdure.Run(tmp_path).plot()
    marked = [(text.xy[0], text.get_text()) for text in ax.texts]
    assert marked == [
        (1, "worker:1"),
        (2.1, "server:0"),
        (2.2, "server:1"),
        (3, "freeze:worker:1"),
        (4, "worker:1"),
        (4.1, "worker:1"),
        (6, "kill:worker:0"),
    ]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train_loss", "death", "fault", "silence"]


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match=r"run\.json"):
        perdure.Run(tmp_path)
