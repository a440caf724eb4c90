"""A run's folder: what happened, what was measured, and both drawn. It needs pandas, and to draw matplotlib."""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any

from .errors import UsageError
from .progress import Progress

#: Events that a plot marks: what they are called there, and their colour.
_MARKS = {
    "fault": ("fault", "tab:orange"),
    "detected": ("death", "tab:red"),
    "suspected": ("silence", "tab:purple"),
}


class Run:
    """A run that goes on or has ended, by its folder. What it has is in docs/formats/run.md."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / "run.json").exists():
            raise UsageError(f"{self.folder} is no folder of a run: it has no run.json")

    def events(self) -> Any:
        """What has happened, as a DataFrame: seconds, clock, kind, target, text, and the details of each."""
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows:
            row.update(row.pop("details", {}))
        columns = ["seconds", "clock", "kind", "target", "text"]
        return _pandas().DataFrame(rows, columns=None if rows else columns)

    def series(self) -> Any:
        """What was measured over time, as a DataFrame: seconds, clock, train_loss and others."""
        return _pandas().read_csv(self.folder / "series.csv")

    def summary(self) -> dict[str, Any] | None:
        """How it ended; None: it has not, or not well."""
        file = self.folder / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def progress(self, every: float | None = None) -> Progress:
        """Show how far the run is until it has ended: see ``Progress``."""
        return Progress(self.folder, every)

    def plot(self, measure: str = "train_loss", ax: Any = None) -> Any:
        """Draw a measure over time, with a line at each death, and at each planned fault that is none. Returns the axes
        of matplotlib.
        """
        series, events = self.series(), self.events()
        if measure not in series:
            raise UsageError(f"nobody has measured {measure!r}; there is {', '.join(series.columns)}")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(8, 3))[1]
        seen = series.dropna(subset=[measure])
        ax.plot(seen["seconds"], seen[measure], label=measure)
        marked = set()
        for event in _marks(events.to_dict("records")):
            label, color = _MARKS[event["kind"]]
            ax.axvline(event["seconds"], color=color, linewidth=1, label=None if label in marked else label)
            marked.add(label)
            ax.annotate(
                event["text"].removeprefix("fault: ").split("@")[0] if label == "fault" else event["target"],
                (event["seconds"], 1),
                xycoords=("data", "axes fraction"),
                rotation=90,
                ha="right",
                va="top",
                fontsize="x-small",
            )
        ax.set(xlabel="seconds", ylabel=measure.replace("_", " "))
        ax.legend()
        return ax


def _marks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those events that a plot marks. A death that was planned is marked once, where it was noticed."""
    marks: list[dict[str, Any]] = []
    died: set[str] = set()
    for event in reversed(events):
        if event["kind"] == "detected":
            died.add(event["target"])
        elif event["kind"] == "fault" and event["text"].startswith("fault: kill:"):
            of = [target for target in died if fnmatch.fnmatch(target, event["target"])]
            died.difference_update(of)
            if of:
                continue
        if event["kind"] in _MARKS:
            marks.append(event)
    return marks[::-1]


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("this needs pandas; install it, or read the files of the run's folder") from None
    return pandas
