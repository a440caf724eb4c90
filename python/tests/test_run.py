from __future__ import annotations

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
    assert [line.get_label() for line in ax.get_lines()] == ["train_loss", "fault"]
    ax.figure.savefig(tmp_path / "loss.svg")
    with pytest.raises(perdure.UsageError, match="nobody has measured 'loss'; there is seconds"):
        run.plot("loss")


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match="is no folder of a run"):
        perdure.Run(tmp_path)
