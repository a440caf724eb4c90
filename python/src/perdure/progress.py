"""Shows a run's progress: one line updated in place in a notebook, successive lines elsewhere. Needs no library."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

#: Columns of series.csv to show if they have values.
_MEASURES = ("train_loss", "test_loss", "test_accuracy", "train_rmse", "test_rmse")
NO_END = 1_000_000_000  # clocks of a job that its programs end


class Progress:
    """Shows a run's clock, time, measurements and deaths until the run ends. A background thread does the work.

    Used as a context manager, it stops at the end of the block.

    Args:
        folder: The run's directory.
        every: Seconds between two lines. None means 0.5 in a notebook and 10 elsewhere.
    """

    def __init__(self, folder: str | os.PathLike[str], every: float | None = None) -> None:
        self._seen = _Seen(Path(folder))
        self._shown = ""
        notebook = _display()
        self._show = _print if notebook is None else _Cell(notebook).show
        self._every = every if every is not None else 10.0 if notebook is None else 0.5
        self._ending = threading.Event()
        self._step()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def line(self) -> str:
        """The line shown last."""
        return self._shown

    def stop(self) -> None:
        """Show a last line and stop."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join()
        self._step()

    def _watch(self) -> None:
        while not self._ending.wait(self._every):
            if not self._step() and self._seen.ended():
                self._step()  # lines written since the last look
                return

    def _step(self) -> bool:
        """Show the line if it has changed. Reports whether the run's files have new lines."""
        grown = False
        with contextlib.suppress(OSError, ValueError):  # a missing or damaged directory counts as unchanged
            grown = self._seen.look()
        line = self._seen.line()
        if line != self._shown:
            self._shown = line
            self._show(line)
        return grown

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def _ipython_display_(self) -> None:
        """Show nothing, so that a cell that ends with this object does not print it a second time."""


class _Seen:
    """The contents of a run's directory as far as they have been read."""

    def __init__(self, folder: Path) -> None:
        self._lock = folder / "lock"
        self._summary = folder / "summary.json"
        self._series, self._events = _Tail(folder / "series.csv"), _Tail(folder / "events.jsonl")
        self._columns: list[str] = []
        self._values: dict[str, float] = {}  # the newest value of each column
        self._deaths = 0
        self._said = ""  # the reason of a failure
        self._end = 0
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._end = json.loads((folder / "run.json").read_bytes())["job"]["clocks"]

    def look(self) -> bool:
        """Read new lines. Reports whether there were any."""
        rows, events = self._series.lines(), self._events.lines()
        for row in rows:
            if not self._columns:
                self._columns = row.split(",")
                continue
            cells = dict(zip(self._columns, row.split(","), strict=False))
            values = {name: float(cell) for name, cell in cells.items() if cell}
            if any(name.startswith("test_") for name in values):  # a test may be of an earlier clock than the last row
                for name in ("clock", "seconds"):
                    values[name] = max(values[name], self._values.get(name, 0.0))
            self._values |= values
        for event in map(json.loads, events):
            self._deaths += event["kind"] == "detected"
            if event["kind"] == "failed":
                self._said = event["text"]
        return bool(rows or events)

    def line(self) -> str:
        """Return the progress as one line of text."""
        if "clock" not in self._values:
            return "clock 0"
        end = f" of {self._end:,}" if 0 < self._end < NO_END else ""
        parts = [f"clock {self._values['clock']:,.0f}{end}", f"{self._values['seconds']:.0f} s"]
        parts += [f"{name.replace('_', ' ')} {self._values[name]:.4g}" for name in _MEASURES if name in self._values]
        if self._values.get("clocks_per_second"):
            parts.append(f"{self._values['clocks_per_second']:.3g} clocks/s")
        if self._deaths:
            parts.append(f"{self._deaths} death" + "s" * (self._deaths > 1))
        if self._said:
            parts.append(self._said)
        return ", ".join(parts)

    def ended(self) -> bool:
        """Reports whether the run has ended: no process holds its lock, or it has a summary if there is no lock."""
        try:
            with self._lock.open("rb") as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return self._summary.exists()
        except OSError:
            return False
        return True


class _Tail:
    """Reads the complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> list[str]:
        """Return the lines added since the last call."""
        try:
            with self._path.open("rb") as f:
                f.seek(self._at)
                data = f.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode().splitlines()


class _Cell:
    """A line in a notebook that is updated in place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle = display, None

    def show(self, line: str) -> None:
        """Replace the line."""
        data = {"text/plain": line}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _display() -> Callable[..., Any] | None:
    """Return IPython's display function if this process is a notebook kernel, which has imported IPython."""
    shell = sys.modules.get("IPython")
    if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
        return None
    from IPython.display import display

    of: Callable[..., Any] = display
    return of
