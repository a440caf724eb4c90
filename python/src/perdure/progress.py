"""How far a run is, in a line: in a notebook one that changes, elsewhere one below the other. It needs no library."""

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

#: What of series.csv is shown, where it was measured.
_MEASURES = ("train_loss", "test_loss", "test_accuracy", "train_rmse", "test_rmse")
NO_END = 1_000_000_000  # clocks of a job whose programs say when it ends


class Progress:
    """Shows how far a run is until it has ended: clock, time, what was measured, deaths. Nothing waits for it.

    As a context it ends with the block. every: seconds from line to line; None: a half in a notebook, else 10.
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
        """What was shown last."""
        return self._shown

    def stop(self) -> None:
        """Show a last line, and no more."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join()
        self._step()

    def _watch(self) -> None:
        while not self._ending.wait(self._every):
            if not self._step() and self._seen.ended():
                self._step()  # what was written between
                return

    def _step(self) -> bool:
        """Look, and show what is new; whether there was anything."""
        grown = False
        with contextlib.suppress(OSError, ValueError):  # a folder that is away, or damaged, has nothing new
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
        """As the last value of a cell it is not shown once more."""


class _Seen:
    """What was read of a run's folder so far."""

    def __init__(self, folder: Path) -> None:
        self._lock = folder / "lock"
        self._summary = folder / "summary.json"
        self._series, self._events = _Tail(folder / "series.csv"), _Tail(folder / "events.jsonl")
        self._columns: list[str] = []
        self._values: dict[str, float] = {}  # the newest of each column
        self._deaths = 0
        self._said = ""  # why it has failed
        self._end = 0
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._end = json.loads((folder / "run.json").read_bytes())["job"]["clocks"]

    def look(self) -> bool:
        """Read what is new; whether anything is."""
        rows, events = self._series.lines(), self._events.lines()
        for row in rows:
            if not self._columns:
                self._columns = row.split(",")
                continue
            cells = dict(zip(self._columns, row.split(","), strict=False))
            values = {name: float(cell) for name, cell in cells.items() if cell}
            if any(name.startswith("test_") for name in values):  # it may be of an earlier clock, which was judged
                for name in ("clock", "seconds"):
                    values[name] = max(values[name], self._values.get(name, 0.0))
            self._values |= values
        for event in map(json.loads, events):
            self._deaths += event["kind"] == "detected"
            if event["kind"] == "failed":
                self._said = event["text"]
        return bool(rows or events)

    def line(self) -> str:
        """It, for people."""
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
        """Whether nobody works on the run: who does has its lock. Where there is none, whether it has a summary."""
        try:
            with self._lock.open("rb") as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return self._summary.exists()
        except OSError:
            return False
        return True


class _Tail:
    """The lines of a file that grows, each once, when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> list[str]:
        """Those that are new."""
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
    """A line of a notebook that changes."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle = display, None

    def show(self, line: str) -> None:
        """Change it."""
        data = {"text/plain": line}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _display() -> Callable[..., Any] | None:
    """IPython's, where this is a notebook's kernel: it has imported IPython."""
    shell = sys.modules.get("IPython")
    if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
        return None
    from IPython.display import display

    of: Callable[..., Any] = display
    return of
