"""The progress line of a run, in a notebook and elsewhere."""

from __future__ import annotations

import fcntl
import json
import queue
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

import perdure
from perdure.progress import Progress

COLUMNS = "seconds,clock,train_loss,test_loss,test_accuracy,clocks_per_second"


class Folder:
    """A run's directory and the process that writes it."""

    def __init__(self, path: Path, clocks: int) -> None:
        self.path = path
        path.mkdir()
        (path / "run.json").write_text(json.dumps({"job": {"clocks": clocks}}))
        self._lock = (path / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.append("series.csv", COLUMNS + "\n")

    def append(self, name: str, text: str) -> None:
        with (self.path / name).open("a") as f:
            f.write(text)

    def event(self, kind: str, text: str = "", target: str = "server:0") -> None:
        self.append("events.jsonl", json.dumps({"kind": kind, "target": target, "text": text}) + "\n")

    def end(self) -> None:
        self._lock.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run", 3000)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[Any]:
    """A fake IPython kernel that records a cell's output and its changes."""
    shown: queue.Queue[Any] = queue.Queue()

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.put(("becomes", data["text/plain"]))

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.put(("is", data["text/plain"]))
        return Handle()

    ipython, of = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    of.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", of)
    return shown


def test_line_that_changes(folder: Folder, cell: queue.Queue[Any]) -> None:
    progress = Progress(folder.path, every=0.001)
    assert cell.get(timeout=60) == ("is", "clock 0")
    folder.append("series.csv", "1.5,1200,0.412345,,,210\n")
    first = "clock 1,200 of 3,000, 2 s, train loss 0.4123, 210 clocks/s"
    assert cell.get(timeout=60) == ("becomes", first)
    folder.append(
        "series.csv", "1.6,1190,,0.5,0.75,\n2.0,13"
    )  # a test result that arrives after newer rows, and half a row
    judged = "clock 1,200 of 3,000, 2 s, train loss 0.4123, test loss 0.5, test accuracy 0.75, 210 clocks/s"
    assert cell.get(timeout=60) == ("becomes", judged)
    folder.append("series.csv", "00,0.4,,,\n")
    assert cell.get(timeout=60)[1].startswith("clock 1,300 of 3,000, 2 s, train loss 0.4, ")
    folder.event("fault")
    folder.event("detected")
    assert cell.get(timeout=60)[1].endswith(", 210 clocks/s, 1 death")
    folder.event("detected")
    assert cell.get(timeout=60)[1].endswith(", 2 deaths")
    folder.append("series.csv", "3,900,0.5,,,200\n")  # the job was rolled back
    assert cell.get(timeout=60)[1].startswith("clock 900 of 3,000, 3 s, train loss 0.5, ")
    folder.event("failed", "the job cannot go on")
    assert cell.get(timeout=60)[1].endswith(", 2 deaths, the job cannot go on")
    assert progress._thread.is_alive()
    folder.end()
    progress._thread.join(60)
    assert not progress._thread.is_alive()
    progress.stop()
    assert cell.empty()
    assert progress.line.startswith("clock 900 of 3,000")


def test_plain_lines(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.append("series.csv", "1.5,1200,0.4,,,210\n")
    with Progress(folder.path, every=3600):
        folder.append("series.csv", "2.5,1300,0.3,,,\n")
        (folder.path / "events.jsonl").write_text("no event\n")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "clock 1,200 of 3,000, 2 s, train loss 0.4, 210 clocks/s",
        "clock 1,300 of 3,000, 2 s, train loss 0.3, 210 clocks/s",
    ]


def test_no_kernel(folder: Folder, cell: queue.Queue[Any], capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules["IPython"].get_ipython = lambda: types.SimpleNamespace()  # type: ignore[attr-defined]
    with Progress(folder.path):  # IPython in a terminal cannot update a line
        pass
    assert cell.empty()
    assert capsys.readouterr().err == "clock 0\n"


@pytest.mark.parametrize("summary", [True, False])
def test_no_lock(tmp_path: Path, summary: bool) -> None:
    folder = Folder(tmp_path / "run", 1_000_000_000)
    (folder.path / "lock").unlink()
    if summary:
        (folder.path / "summary.json").write_text("{}")
    progress = Progress(folder.path, every=0.001)
    if summary:
        progress._thread.join(60)
    assert progress._thread.is_alive() is not summary
    folder.append("series.csv", "1,7,,,,\n")
    progress.stop()
    assert progress.line == "clock 7, 1 s"


def test_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill = "--fault=kill:server:0@clock:20"
    with perdure.start(clocks=60, out=tmp_path / "run", args=[*SMALL, kill]) as job:
        table = job.table("w", rows=4, dim=2, rule=perdure.Add())
        progress = job.progress(every=0.05)

        def step(clock: int) -> None:
            table.inc([0], [[1, 1]])
            job.report(train_loss=1 / (clock + 1), samples=2)

        job.run(step)
    progress._thread.join(60)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"clock 60 of 60, \d+ s, train loss 0\.01\d+, .* clocks/s, 1 death", last), last
    assert progress.line == last
    observer = perdure.Run(tmp_path / "run").progress()
    assert observer.line == last
    observer.stop()


def test_nowhere(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_RUN", raising=False)
    monkeypatch.setattr(job, "_owner", None)
    for what in (job.progress, job.plot, job.events):
        with pytest.raises(perdure.UsageError, match="PERDURE_RUN"):
            what()


#: A cell to run in a real kernel.
CELL = """
import json, fcntl, pathlib
from perdure.progress import Progress
folder = pathlib.Path({folder!r})
progress = Progress(folder, every=0.001)
with (folder / "series.csv").open("a") as f:
    f.write("1.5,1200,0.4,,,210\\n")
progress.stop()
progress
"""


def test_kernel(folder: Folder) -> None:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120)
    try:
        said: list[tuple[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            said.append((message["msg_type"], message["content"]))

        reply = client.execute_interactive(CELL.format(folder=str(folder.path)), timeout=120, output_hook=hook)
        assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    shown = [(kind, content) for kind, content in said if kind not in ("status", "execute_input")]
    assert [kind for kind, _ in shown] == ["display_data", "update_display_data"], shown
    assert len({content["transient"]["display_id"] for _, content in shown}) == 1
    line = "clock 1,200 of 3,000, 2 s, train loss 0.4, 210 clocks/s"
    assert shown[1][1]["data"]["text/plain"] == line
