"""A program's membership in a job, and the job's tables."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _agent, _nested
from ._agent import Agent
from ._shared import Loans, Lot, Regions
from ._state import Encoded
from .errors import NonFinite, PerdureError, RolledBack, UsageError
from .progress import Progress
from .rules import Rule
from .run import Run

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


class Share(NamedTuple):
    """Which slot this is of those that take part in a clock: what its data are."""

    rank: int
    of: int


class Reading(NamedTuple):
    """Rows that were read, and their clocks: see ``Table.read``."""

    values: Floats
    oldest: int  #: all updates of clocks below are in all rows
    newest: int  #: none of this clock, or of a later one, is in any row

    @property
    def mixed(self) -> bool:
        """Whether the rows are of several clocks; if not, ``oldest`` is their clock."""
        return self.oldest != self.newest


class _Now(NamedTuple):
    clock: int
    end: int  # 0: it is not known yet
    generation: int  # one more for each time that the whole job was rolled back
    share: Share

    @property
    def ended(self) -> bool:
        return 0 < self.end <= self.clock


class Saved(NamedTuple):
    """What a slot's program had saved."""

    state: bytes | None  # None: nothing
    clock: int  # that it was saved in; -1: nothing was
    older: int  # clocks by which it is older than the last one that was acknowledged; 0: it is that


class Table:
    """A table of the job: rows of ``dim`` values of float32 each, several of them one after the other.

    A program reads its own writes: what it Inc'd shows in what it Gets.
    """

    def __init__(self, job: Job, number: int, spec: dict[str, Any]) -> None:
        self._job = job
        self._number = number
        self.name: str = spec["name"]
        self.dim: int = spec["dim"]
        self.rows: int = spec.get("rows", 0)  #: of a dense table; 0: it is sparse
        self.spec = spec  #: as the job has it

    def get(self, rows: ArrayLike, out: Floats | None = None, timeout: float | None = None) -> Floats:
        """Read rows: an array of shape (len(rows), dim), as new as the table's consistency model asks for.

        rows: their numbers, in any order. out: where they go; in shared memory (``Job.empty``) nothing is copied.
        timeout: seconds, after which TimeoutError is raised and ``out`` is written no more; None: it waits.
        """
        return self.read(rows, out=out, timeout=timeout).values

    def get_run(self, first: int, count: int, out: Floats | None = None, timeout: float | None = None) -> Floats:
        """Read ``count`` consecutive rows of a dense table, from ``first`` on."""
        return self._read(_agent.GET_RUN, first, count, out, timeout).values

    def read(self, rows: ArrayLike | None = None, out: Floats | None = None, timeout: float | None = None) -> Reading:
        """Read rows as ``get``, and report their clocks, which leave out this slot's own updates.

        rows: their numbers; None: all of a dense table. Servers continue while an observer reads, so answers of several
        servers may be of several clocks: ``mixed`` says so. Under bsp it is seldom, and reading again gives another
        answer, if ``forget`` is called before.
        """
        if rows is None:
            return self._read(_agent.GET_RUN, 0, self.rows, out, timeout)
        ids = self._ids(rows)
        return self._read(_agent.GET_ROWS, ids, len(ids), out, timeout)

    def inc(self, rows: ArrayLike, delta: ArrayLike) -> None:
        """Add to what this slot does to rows in the present clock: an array of shape (len(rows), dim).

        A row that is named twice gets both. What it does to a row the table's rule says. It is sent with ``clock``.
        """
        ids = self._ids(rows)
        self._write(_agent.INC_ROWS, ids, len(ids), delta)

    def inc_run(self, first: int, delta: ArrayLike) -> None:
        """``inc`` of consecutive rows of a dense table, from ``first`` on: an array of shape (count, dim)."""
        values = self._values(delta)
        self._write(_agent.INC_RUN, first, values.size // self.dim, values)

    def deltas(self, first: int = 0, count: int | None = None) -> Floats:
        """Memory for what this slot does to ``count`` consecutive rows of a dense table in the present clock, all from
        ``first`` on if None: an array of shape (count, dim), which is sent from where it lies, without a copy.

        Write all of it (it holds anything at first), and call ``clock`` or ``flush``: then it counts as Inc'd, and
        is the program's no more. The array cannot be written then. Views and tensors that were made of it can, and must
        not be: what is sent again would be another update. Until then its rows cannot be Inc'd, nor does a get show
        them; NaN and Inf in it are found by ``clock``.
        """
        count = self.rows - first if count is None else count
        loans = self._job._lending()
        place, size, gone, _, _ = self._call(_agent.DELTAS, 0, first, count)
        values: Floats = loans.piece(place, size, gone)[: 4 * count * self.dim].view(np.float32)
        array = values.reshape(count, self.dim)
        self._job._lent_out.append((self._number, weakref.ref(array)))
        self._job._inced = True
        return array

    def prefetch(self, rows: ArrayLike) -> None:
        """Ask for rows that will be read in this clock. It does not wait."""
        ids = self._ids(rows)
        with self._job._lent(ids) as at:
            self._call(_agent.PREFETCH, 0, at.address, len(ids))

    def flush(self) -> None:
        """Send what was Inc'd so far, while the program goes on computing. Nothing is applied before ``clock``."""
        with self._job._taking_back(self._number):
            self._call(_agent.FLUSH)

    def forget(self) -> None:
        """Read what comes next from the servers, and not from the cache."""
        self._call(_agent.FORGET)

    def weigh(self, weight: float) -> None:
        """Say how much this clock's update counts, for a table whose ``combine`` is weighted: tokens, for example."""
        self._job._inced = True
        self._call(_agent.WEIGH, struct.unpack("<q", struct.pack("<d", weight))[0])

    def stored_rows(self) -> Rows:
        """The numbers of all rows that a sparse table stores, rising: for a job that has ended its clocks."""
        room = np.empty(0, np.int64)
        while True:
            with self._job._lent(room, load=False) as to:
                count = self._call(_agent.STORED, to.address, 0, len(room)).a
                if count <= len(room):
                    return to.copy(room)[:count].copy()
            room = np.empty(count + count // 8, np.int64)

    def _call(self, op: int, a: int = 0, b: int = 0, c: int = 0, timeout: float | None = None) -> _agent.Reply:
        return self._job._agent.call(op, self._number, a, b, c, timeout=timeout)

    def _ids(self, rows: ArrayLike) -> Rows:
        ids = np.asarray(rows)
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.dtype == np.uint64:  # rows of sparse tables are any 64 bits
            ids = ids.view(np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UsageError(f"table {self.name}: rows are a list of whole numbers, and not {ids.dtype} of {ids.shape}")
        return np.ascontiguousarray(ids, dtype=np.int64)

    def _values(self, delta: ArrayLike) -> Floats:
        values = np.asarray(delta)
        if values.dtype != np.float32:
            if values.dtype.kind not in "fiu":
                raise UsageError(f"table {self.name}: values are float32, and not {values.dtype}")
            values = values.astype(np.float32)
        if values.ndim == 0 or (values.shape[-1] != self.dim and (values.ndim > 1 or values.size % self.dim)):
            raise UsageError(f"table {self.name}: an array of shape {values.shape}; its rows have {self.dim} values")
        return np.ascontiguousarray(values)

    def _read(self, op: int, which: Rows | int, count: int, out: Floats | None, timeout: float | None) -> Reading:
        if out is None:
            out = np.empty((count, self.dim), np.float32)
        if out.dtype != np.float32 or out.size != count * self.dim or not out.flags.writeable:
            raise UsageError(
                f"table {self.name}: out is {out.dtype} of {out.shape}, for {count} rows of {self.dim} float32"
            )
        job = self._job
        with job._lent(out, load=False) as to, job._lent(which) as at:
            reply = self._call(op, to.address, at.address, count, timeout)
            copy = to.copy(out)
            if copy.size:
                out[...] = copy.reshape(out.shape)
        return Reading(out, reply.a, reply.b)

    def _write(self, op: int, which: Rows | int, count: int, delta: ArrayLike) -> None:
        values = self._values(delta)
        if values.size != count * self.dim:
            raise UsageError(
                f"table {self.name}: an array of shape {values.shape} for {count} rows of {self.dim} values"
            )
        self._job._inced = True
        with self._job._lent(values) as of, self._job._lent(which) as at:
            self._call(op, of.address, at.address, count)


class _Lent:
    """An array, where the agent finds it: where it lies, or a copy."""

    def __init__(self, job: Job, array: NDArray[Any] | int, load: bool) -> None:
        self._job = job
        self._borrowed: Lot | None = None
        if isinstance(array, int):  # the number of a row
            self.address = array
            return
        self.address = job._regions.address_of(array)
        if self.address >= 0 or array.nbytes == 0:
            self.address = max(self.address, 0)
            return
        self._borrowed = job._borrow(array.nbytes)
        self.address = self._borrowed.address
        if load:
            self.copy(array)[...] = array.reshape(-1)

    def copy(self, like: NDArray[Any]) -> NDArray[Any]:
        """The values of the copy, if there is one; else nothing."""
        if self._borrowed is None:
            return np.empty(0, like.dtype)
        return self._borrowed.bytes[: like.nbytes].view(like.dtype)

    def __enter__(self) -> _Lent:
        return self

    def __exit__(self, *_: object) -> None:
        if self._borrowed is not None:
            self._job._spare.append(self._borrowed)


class Job:
    """This process's membership in a job, in a slot: made by ``perdure.start`` and ``perdure.join``.

    As a context it finishes the job's work at its end; of an exception it leaves the slot to another process.
    """

    def __init__(self, hello: dict[str, Any], owner: _Owner | None = None) -> None:
        self._agent = Agent()
        self._owner = owner
        self._regions = Regions()
        self._spare: list[Lot] = []
        self._loans: Loans | None = None
        self._lent_out: list[tuple[int, weakref.ref[Floats]]] = []  # arrays of the present clock, by their table
        self._mapping = threading.Lock()
        self._finished = False
        self._shown: list[str] = []  # variables of the environment that it has set
        self._inced = False  # by this process in the present clock: what would die with it
        self._asked = False  # whether the program goes by clocks
        self._observer = bool(hello.get("observer"))
        try:
            said = json.loads(self._agent.call(_agent.HELLO, text=json.dumps(hello).encode()).text)
        except BaseException:
            self._agent.close(finished=False)
            raise
        self.slot: int = said["slot"]
        self.version: str = said["version"]  #: of the perdure program that is this program's agent
        self.spec: dict[str, Any] = said["job"]  #: as run.json has it
        self._state_bytes: int = said["state_bytes"]  # how large a state may be at most
        self._state_why: str = said.get("state_why", "")  # why no larger ones are kept

    @property
    def run_folder(self) -> Path | None:
        """The run's folder; None: it is on another machine, or nobody has said where it is."""
        named = self._owner.folder if self._owner is not None else os.environ.get("PERDURE_RUN")
        return Path(named) if named else None

    def events(self) -> Any:
        """What has happened to the job, as a DataFrame of pandas: see ``perdure.Run``."""
        return self._run().events()

    def table(
        self,
        name: str,
        rows: int | None = None,
        *,
        dim: int,
        rule: Rule,
        init: str = "zeros",
        scale: float = 0.0,
        combine: str = "each",
        **settings: Any,
    ) -> Table:
        """Create a table, or attach to the equal one of that name. All slots ask for it before their first clock.

        rows: of a dense table; None: it is sparse, and has a row for every 64-bit number.
        rule: what an update does to a row.
        init: what rows hold at first: ``zeros``, ``uniform`` in [-scale, scale), or ``normal`` with that deviation.
        combine: ``each``, or under bsp ``sum``, ``mean`` or ``weighted``: one run of the rule for all slots' updates.
        settings: fields of TableSpec as run.json has them: evict, non_finite, whole, distance.
        """
        if init == "zeros" and scale:
            raise UsageError(f"table {name}: zeros have no scale; say init='uniform' or init='normal'")
        spec: dict[str, Any] = {"name": name, "dim": dim, "rule": rule.spec(), **settings}
        if rows is None:
            spec["sparse"] = True
        else:
            spec["rows"] = rows
        if init != "zeros":
            spec["init"] = {"kind": init, "scale": scale}
        if combine != "each":
            spec["combine"] = combine
        reply = self._agent.call(_agent.TABLE, text=json.dumps(spec).encode())
        return Table(self, reply.a, json.loads(reply.text))

    def clock(self) -> int:
        """End the iteration: what was Inc'd becomes this slot's update. Returns the clock to work on now: one more, an
        earlier one if the job was rolled back, or the same one if the slot's work ends here.
        """
        with self._taking_back(None):
            now = self._agent.call(_agent.CLOCK).a
        self._inced = False
        return now

    @property
    def now(self) -> int:
        """The clock to work on."""
        self._asked = True
        return self._agent.call(_agent.NOW).a

    def at(self, clock: int) -> None:
        """Set the clock at which an observer reads, and ``now``: a get waits until all updates of clocks below are
        applied, or all that the job will have. What is cached is forgotten. At first it is 0.
        """
        self._agent.call(_agent.AT, a=clock)

    @property
    def end(self) -> int:
        """The clock at which the slot's work ends; 0: it is not known yet."""
        return self._agent.call(_agent.NOW).b

    @property
    def share(self) -> Share:
        """Of the slots that take part in the present clock, which one this is."""
        return self._now().share

    @property
    def ended(self) -> bool:
        """Whether the slot's work ends at the present clock: then ``clock`` returns the same one for ever."""
        self._asked = True
        return self._now().ended

    def end_job(self) -> None:
        """Ask that the job end as soon as every slot can: its goal is reached."""
        self._agent.call(_agent.END_JOB)

    def run(self, step: Callable[[int], None]) -> None:
        """Call ``step`` for each clock of the slot, again with an earlier one after a roll-back, and finish: it returns
        when the whole job is done. A step may call ``end_job``.
        """
        while True:
            try:
                now = self._now()
                if now.ended:
                    self._agent.call(_agent.FINISH)
                    self._finished = True
                    return
                step(now.clock)
            except RolledBack:
                pass
            self.clock()

    def finish(self) -> None:
        """End the slot's work, and wait until the whole job is done. Clocks that are left are not worked on: the job is
        asked to end as soon as every slot can. RolledBack is raised where the job goes back: work is to be done again,
        by this program when it is started again.
        """
        self._to_end(lambda: None)
        self._agent.call(_agent.FINISH)
        self._finished = True

    def _to_end(self, between: Callable[[], None]) -> None:
        """Have the job end, and do the clocks until then without work; between is called before each ends."""
        begun = now = self._now()
        if not now.ended:
            self.end_job()
        while not now.ended:
            between()
            self.clock()
            now = self._now()
            if now.generation != begun.generation:
                raise RolledBack("the job was rolled back while it was to end; start this program again")

    def _now(self) -> _Now:
        clock, end, share, generation, _ = self._agent.call(_agent.NOW)
        return _Now(clock, end, generation, Share(share >> 32, share & 0xFFFFFFFF))

    def settle(self) -> None:
        """Wait until all updates of the clocks that this slot has ended are applied."""
        self._agent.call(_agent.SETTLE)

    def await_slots(self) -> None:
        """Wait until a process speaks for every slot, so that all begin together."""
        self._agent.call(_agent.AWAIT_SLOTS)

    def save_state(self, state: bytes) -> None:
        """Give what the program must keep, such as a position in the data. It goes with the slot's next update, and the
        slot's next process gets it from ``load_state``. Up to 1 GiB; or 1 MiB, where this machine does not reach the
        job's store.
        """
        with self._lent(np.frombuffer(state, np.uint8)) as at:
            self._agent.call(_agent.SAVE_STATE, a=at.address, c=len(state))

    def _save(self, state: Encoded) -> None:
        """``save_state``, without a copy of the whole between."""
        room = self._borrow(state.size)
        try:
            state.write(room.bytes[: state.size])
            self._agent.call(_agent.SAVE_STATE, a=room.address, c=state.size)
        finally:
            self._spare.append(room)

    def load_state(self) -> bytes | None:
        """What the slot's program had saved before the present clock; None: nothing."""
        return self.load_saved().state

    def load_saved(self) -> Saved:
        """``load_state``, and of which clock it is."""
        size, clock, older, _, _ = self._agent.call(_agent.LOAD_STATE)
        if size < 0:
            return Saved(None, clock, older)
        room = self._borrow(max(size, 1))
        try:
            self._agent.call(_agent.FETCH, a=room.address)
            return Saved(room.bytes[:size].tobytes(), clock, older)
        finally:
            self._spare.append(room)

    def report(self, *, samples: int = 0, **measures: float) -> None:
        """Say what was measured, for ``perdure status``, series.csv and reports. It does not wait.

        samples: how many were worked through. measures: train_loss, test_loss, test_accuracy, train_rmse, test_rmse.
        """
        unknown = measures.keys() - {"train_loss", "test_loss", "test_accuracy", "train_rmse", "test_rmse"}
        if unknown:
            raise UsageError(f"nobody knows what {', '.join(sorted(unknown))} is; say train_loss, for example")
        finite = {name: float(v) for name, v in measures.items() if math.isfinite(v)}
        self._report(samples, **finite)

    def _report(self, samples: int = 0, **said: Any) -> None:
        """Send a Report, as docs/formats/messages.md has it."""
        self._agent.call(_agent.REPORT, a=samples, text=json.dumps(said).encode())

    def empty(self, shape: int | Sequence[int], dtype: str = "float32") -> NDArray[Any]:
        """An array in memory that the agent shares: what is read into it, or Inc'd from it, is copied once less."""
        of = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(sizes)
        region = self._map(max(1, count * of.itemsize))
        return region.bytes[: count * of.itemsize].view(of).reshape(sizes)

    def close(self) -> None:
        """Leave the job. Unless ``finish`` has returned the slot is free for another process."""
        self._agent.close(self._finished)
        for name in self._shown:  # else the next job of this process would ask for the same slot
            os.environ.pop(name, None)
        self._shown = []
        if self._owner is not None:
            self._owner.close(self._finished)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None and not self._finished and not self._observer:
                self.finish()
        finally:
            self.close()

    def _lent(self, array: NDArray[Any] | int, load: bool = True) -> _Lent:
        return _Lent(self, array, load)

    def _lending(self) -> Loans:
        """The memory that the agent lends, which is made when the first of it is wanted."""
        with self._mapping:
            if self._loans is None:
                loans = Loans()
                self._agent.call(_agent.LEND, files=[loans.fd])
                self._loans = loans
            return self._loans

    @contextlib.contextmanager
    def _taking_back(self, table: int | None) -> Iterator[None]:
        """Around a call that takes what was lent, of a table or of all: behind it nobody is to write to it."""
        try:
            yield
        except (NonFinite, UsageError):
            raise  # it took nothing: what is wrong can be mended
        except BaseException:  # nobody knows what it took
            self._take_back(table)
            raise
        self._take_back(table)

    def _take_back(self, table: int | None) -> None:
        kept = []
        for of, lent in self._lent_out:
            array = lent()
            if array is not None and table in (None, of):
                array.flags.writeable = False
            elif array is not None:
                kept.append((of, lent))
        self._lent_out = kept

    def _borrow(self, size: int) -> Lot:
        """Shared memory for a copy, of a size at least; who has done with it appends it to ``_spare``."""
        self._agent.check()  # a forked child would write into its parent's
        with self._mapping:
            fits = [r for r in self._spare if r.size >= size]
            if fits:
                least = min(fits, key=lambda r: r.size)
                self._spare.remove(least)
                return least
        return self._map(1 << max(12, (size - 1).bit_length()))

    def _map(self, size: int) -> Lot:
        while self._regions.gone:  # what nobody has any more, the agent need not have
            gone = self._regions.gone.pop()
            self._regions.remove(gone)
            self._agent.call(_agent.UNMAP, a=gone.address, timeout=_agent.PROMPT)
        region = Lot(size)
        try:
            region.address = self._agent.call(_agent.MAP, a=size, files=[region.fd], timeout=_agent.PROMPT).a
        finally:
            region.close_file()
        self._regions.add(region)
        return region

    def _run(self) -> Run:
        folder = self.run_folder
        if folder is None:
            raise UsageError("nobody has said where the run's folder is; perdure.Run(FOLDER) reads it")
        return Run(folder)

    def progress(self, every: float | None = None) -> Progress:
        """Show how far the whole job is, in a line that changes in a notebook: see ``Progress``."""
        return self._run().progress(every)

    def plot(self, measure: str = "train_loss", ax: Any = None) -> Any:
        """Draw a measure over time, as far as it is known, with a line at each death: see ``perdure.Run``."""
        return self._run().plot(measure, ax)


class _Owner:
    """A job that this program has started, with its coordinator and servers: a process ``perdure up``."""

    patience = 120.0  #: seconds that the job may take to start

    def __init__(self, folder: Path, args: Sequence[str]) -> None:
        self.folder = folder
        args = ["--out", str(folder), *args]
        self.process = _agent.begin(["up", "--with-parent", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said: deque[str] = deque(maxlen=100)  # the last lines: a job may talk for days
        self.coordinator = self.secret_file = self.keys = ""
        self._told = threading.Event()  # where the job is, or that there will be none
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        told = self._told.wait(self.patience)
        if self.coordinator:
            return
        if not told:
            self.process.kill()
        self.process.wait()
        self._listener.join(timeout=10)
        last = self.said[-1].removeprefix("perdure: ") if self.said else "perdure up said nothing"
        raise UsageError(last if told else f"the job has not started within {self.patience:g} s: {last}")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if not self._told.is_set():
                self._look(line.rstrip())
        self._told.set()

    def _look(self, line: str) -> None:
        """Look whether a line says where the job is, in the form of variables of the environment."""
        where = re.search(r"PERDURE_COORDINATOR=(\S+) PERDURE_SECRET_FILE=(.*?)(?: PERDURE_KEYS=(.*))?$", line)
        if where:
            self.secret_file, self.keys = where.group(2), where.group(3) or ""
            self.coordinator = where.group(1)  # the last: it says that all are known
            self._told.set()

    def close(self, finished: bool) -> None:
        """Wait until the job's files are written, however long that takes; where its work is not done, stop it."""
        if not finished:
            self.process.terminate()
        try:
            self.process.wait(timeout=None if finished else 60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join()  # its last line says why it has failed
        if finished and self.process.returncode != 0:
            raise PerdureError(self.said[-1].removeprefix("perdure: ") if self.said else "perdure up has failed")


def join(
    coordinator: str = "",
    secret_file: str = "",
    *,
    slot: int | None = None,
    observer: bool = False,
    grow: bool = False,
    saves_at_cuts: bool = False,
    cache_mb: int = 0,
    window_mb: int = 0,
    retain_mb: int = 0,
    patience: float | None = None,
    lost_after: float | None = None,
    keys: str = "",
) -> Job:
    """Join a job as one of its workers. Without an address the environment says where it is, as ``perdure launch`` and
    ``perdure up --exec`` have it.

    slot: the slot to take; None: the environment's, or any that is free. observer: only read.
    grow: where no slot is free the job is to have one more. saves_at_cuts: see Config.SavesAtCuts in Go.
    cache_mb, window_mb, retain_mb: bounds of cached rows, and of updates that are on their way, or are kept until a
    checkpoint has them; 0: 256, 64, and a sixteenth of the machine's memory, 512 at least.
    patience, lost_after: seconds to look for a coordinator, and after which a job that is not heard is lost.
    keys: the folder of a worker's keys, of a job whose connections are private; it has the secret, too. "": that of the
    environment's PERDURE_KEYS.
    """
    if not coordinator:
        _nested.refuse()
    if slot is None and not observer:
        _refuse_rank()
    job = Job(
        {
            "protocol": _agent.PROTOCOL,
            "coordinator": coordinator,
            "secret_file": secret_file,
            "keys": keys,
            "slot": slot,
            "observer": observer,
            "grow": grow,
            "saves_at_cuts": saves_at_cuts,
            "cache_mb": cache_mb,
            "window_mb": window_mb,
            "retain_mb": retain_mb,
            "patience": patience,
            "lost_after": lost_after,
        }
    )
    if not coordinator and not observer:
        job._shown = _nested.show_ranks(job.slot, job.spec["slots"])
    return job


def _refuse_rank() -> None:
    """Refuse to share a slot with other processes of a group that PyTorch has made inside it, by torchrun for example.

    The rank of a group over the slots of a job is the slot.
    """
    group, slot = sys.modules.get("torch.distributed"), os.environ.get("PERDURE_SLOT", "")
    if group is None or not slot or not group.is_available() or not group.is_initialized():
        return
    rank, size = group.get_rank(), group.get_world_size()
    if size > 1 and str(rank) != slot:
        raise UsageError(
            f"this process is rank {rank} of a torch.distributed group of {size} in slot {slot}, and a slot is one "
            "process: leave torchrun out, and start one process for each GPU by perdure launch"
        )


def start(
    *,
    servers: int = 2,
    recovery: str = "resend:auto",
    consistency: str = "bsp",
    clocks: int = 1_000_000_000,
    out: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
) -> Job:
    """Start a job on this machine, with this program as its only worker, and join it. It ends with the program.

    Under ``perdure launch`` and ``perdure up --exec`` it joins the job that is there, and the settings are that job's.
    out: the run's folder; None: one among temporary files, which stays. args: more flags of ``perdure up``.
    """
    if os.environ.get("PERDURE_COORDINATOR"):
        return join()
    silent = {"-q", "--quiet", "--json"}.intersection(args)
    if silent:
        raise UsageError(
            f"start: leave {min(silent)} out; where the job is, this program reads in what perdure up says"
        )
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="perdure-")) / "run"
    flags = {"workers": 1, "servers": servers, "recovery": recovery, "consistency": consistency, "clocks": clocks}
    owner = _Owner(folder, [*(f"--{flag}={value}" for flag, value in flags.items()), *args])
    hello = {
        "protocol": _agent.PROTOCOL,
        "coordinator": owner.coordinator,
        "secret_file": owner.secret_file,
        "keys": owner.keys,
        "slot": 0,
    }
    try:
        return Job(hello, owner)
    except BaseException:
        owner.process.terminate()
        owner.process.wait()
        raise
