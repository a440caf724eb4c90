"""Reads a run's directory: events, measurements, and plots of both. It needs pandas, and matplotlib for plots."""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any

from .errors import UsageError
from .progress import Progress

#: The kinds of events that a plot marks, with their label and colour.
_MARKS = {
    "fault": ("fault", "tab:orange"),
    "detected": ("death", "tab:red"),
    "suspected": ("silence", "tab:purple"),
}


class Run:
    """The directory of a run that is in progress or has ended. docs/formats/run.md describes its files.

    Args:
        folder: The run's directory.

    Raises:
        UsageError: The directory does not contain a run.

    Example:
        >>> run = perdure.Run("runs/first")
        >>> run.series()[["clock", "train_loss"]]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / "run.json").exists():
            raise UsageError(f"{self.folder} is not the directory of a run: run.json is missing; check the path")

    def events(self) -> Any:
        """Return the run's events as a DataFrame: seconds, clock, kind, target, text, and details per kind."""
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows:
            row.update(row.pop("details", {}))
        columns = ["seconds", "clock", "kind", "target", "text"]
        return _pandas().DataFrame(rows, columns=None if rows else columns)

    def series(self) -> Any:
        """Return the measurements over time as a DataFrame: seconds, clock, train_loss and others."""
        return _pandas().read_csv(self.folder / "series.csv")

    def summary(self) -> dict[str, Any] | None:
        """Return the run's result, or None if the run has not ended or has failed."""
        file = self.folder / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def progress(self, every: float | None = None) -> Progress:
        """Show the run's progress until it ends: see ``Progress``.

        Args:
            every: Seconds between two lines.
        """
        return Progress(self.folder, every)

    def plot(self, measure: str = "train_loss", ax: Any = None) -> Any:
        """Plot a measure over time, with a line at each death and at each injected fault that kills no process.

        Args:
            measure: A column of ``series``.
            ax: The matplotlib axes to draw on. None creates new ones.

        Returns:
            The matplotlib axes.

        Raises:
            UsageError: The run has no such measure.
        """
        series, events = self.series(), self.events()
        if measure not in series:
            raise UsageError(f"this run has no measure {measure!r}; choose from {', '.join(series.columns)}")
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
    """Return the events that a plot marks. A death caused by an injected fault is marked once, at its detection."""
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
        raise UsageError("pandas is not installed; install it, or read the files in the run's directory") from None
    return pandas
