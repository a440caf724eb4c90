"""A run's folder: what happened, what was measured, and both drawn. It needs pandas, and to draw matplotlib."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .errors import UsageError


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

    def plot(self, measure: str = "train_loss", ax: Any = None) -> Any:
        """Draw a measure over time, with a line at each fault. Returns the axes of matplotlib."""
        series, events = self.series(), self.events()
        if measure not in series:
            raise UsageError(f"nobody has measured {measure!r}; there is {', '.join(series.columns)}")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(8, 3))[1]
        seen = series.dropna(subset=[measure])
        ax.plot(seen["seconds"], seen[measure], label=measure)
        for i, fault in enumerate(events[events["kind"] == "fault"].itertuples()):
            ax.axvline(fault.seconds, color="tab:red", linewidth=1, label="fault" if i == 0 else None)
            ax.annotate(
                fault.text.removeprefix("fault: ").split("@")[0],
                (fault.seconds, 1),
                xycoords=("data", "axes fraction"),
                rotation=90,
                ha="right",
                va="top",
                fontsize="x-small",
            )
        ax.set(xlabel="seconds", ylabel=measure.replace("_", " "))
        ax.legend()
        return ax


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("this needs pandas; install it, or read the files of the run's folder") from None
    return pandas
