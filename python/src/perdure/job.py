"""A program's membership in a job, and the job's tables."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _agent, _island, _nested
from ._agent import Agent
from ._epochs import Epochs
from ._island import Island
from ._notebook import Dashboard, dashboard_of
from ._sending import Sending
from ._shared import Loans, Lot, Regions
from ._state import Encoded, decode
from .errors import EXIT_ROLLED_BACK, Done, NonFinite, PerdureError, RolledBack, UsageError, _Left
from .progress import Progress
from .rules import Rule
from .run import Run

if TYPE_CHECKING:
    from ._overlap import Exchange
    from .sampler import Sampler

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

_PIECE = 32 << 20  # bytes of a piece of a large state
_LINGER = 5.0  # seconds that a process waits at its end for an outer step that is being sent
on_join: Callable[[Job], None] | None = None  # called with each job that this process joins in a slot
_ANNOUNCE = "--announce-fd"  # the flag of ``perdure up`` for the file descriptor of its announcement


class Share(NamedTuple):
    """This slot's share of the data: its rank among the slots that participate in a clock, and their number."""

    rank: int
    of: int


class Reading(NamedTuple):
    """Rows and their clocks, as ``Table.read`` returns them."""

    values: Floats
    oldest: int  #: every row contains all updates of earlier clocks
    newest: int  #: no row contains an update of this clock or a later one

    @property
    def mixed(self) -> bool:
        """Reports whether the rows are of several clocks. If not, ``oldest`` is their clock."""
        return self.oldest != self.newest


class _Clock(int):
    """A clock that notices when the program prints it: then the program need not count by it."""

    _job: Job | None = None

    @classmethod
    def of(cls, clock: int, job: Job) -> _Clock:
        """Return the clock of a job, as a value that the program may count by until it prints it."""
        self = cls(clock)
        self._job = job
        job._asked += 1
        return self

    def __format__(self, spec: str) -> str:
        if self._job is not None:
            self._job._asked -= 1
            self._job = None
        return int.__format__(self, spec)

    def __repr__(self) -> str:
        return format(self, "d")

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class _Now(NamedTuple):
    clock: int
    end: int  # 0: not known yet
    generation: int  # increases with each rollback of the job
    share: Share
    saver: int = -1  # the slot that saves the shared state, if a checkpoint will be taken at the end of the clock
    left: bool = False  # whether the slot has done its last clock and leaves the job

    @property
    def ended(self) -> bool:
        return 0 < self.end <= self.clock

    @classmethod
    def of(cls, values: Sequence[Any]) -> _Now:
        """Return the values of a ``_Now`` that has been a list of JSON."""
        clock, end, generation, share, saver, left = values
        return cls(clock, end, generation, Share(*share), saver, left)


class Saved(NamedTuple):
    """A saved slot state, as ``Job.load_saved`` returns it.

    Attributes:
        state: The saved bytes, or None if the slot has saved none.
        clock: The clock in which the state was saved, or -1.
        older: How many clocks the state is older than the last acknowledged one; 0 if it is the last one.
    """

    state: bytes | None
    clock: int
    older: int


class Table:
    """A table of the job. Each row has ``dim`` values of type float32.

    A program reads its own writes: ``get`` returns rows that include the program's earlier ``inc``.

    Example:
        >>> table = job.table("w", rows=1000, dim=16, rule=perdure.SGD(0.1))
        >>> weights = table.get([3, 7])
        >>> table.inc([3, 7], gradients)
        >>> job.clock()
    """

    def __init__(self, job: Job, number: int, spec: dict[str, Any]) -> None:
        self._job = job
        self._number = number
        self.name: str = spec["name"]
        self.dim: int = spec["dim"]
        self.rows: int = spec.get("rows", 0)  #: number of rows of a dense table; 0 for a sparse table
        self.spec = spec  #: the job's specification of this table, in the form of run.json

    def get(self, rows: ArrayLike, out: Floats | None = None, timeout: float | None = None) -> Floats:
        """Read rows that are as fresh as the table's consistency model requires.

        Args:
            rows: The row numbers, in any order.
            out: The array to read into. An array in shared memory (``Job.empty``) saves a copy.
            timeout: The longest time to wait, in seconds. None waits without a limit.

        Returns:
            An array of shape (len(rows), dim).

        Raises:
            TimeoutError: The servers did not answer in time. ``out`` is not written after that.
        """
        return self.read(rows, out=out, timeout=timeout).values

    def get_run(self, first: int, count: int, out: Floats | None = None, timeout: float | None = None) -> Floats:
        """Read ``count`` consecutive rows of a dense table, starting at row ``first``. Otherwise like ``get``."""
        return self._read(_agent.GET_RUN, first, count, out, timeout).values

    def _get_run_as(self, encoding: str | None, first: int, count: int, out: Floats | None = None) -> Floats:
        """Read rows like ``get_run``, but servers round them to ``bf16`` or ``int8``, which needs ``bsp``."""
        return self._read(_agent.GET_RUN, first, count, out, None, _agent.AS[encoding]).values

    def _get_unless_copy_wanted(self, count: int) -> Floats:
        """Read the first rows, or raise _CopyWanted instead of waiting while a process needs a copy: see _save_copy."""
        return self._read(_agent.GET_RUN, 0, count, None, None, _agent.UNTIL_COPY).values

    def read(self, rows: ArrayLike | None = None, out: Floats | None = None, timeout: float | None = None) -> Reading:
        """Read rows like ``get``, and also return their clocks.

        The clocks do not count this slot's own updates. Training continues while an observer reads, so servers may
        answer with rows of different clocks, seldom under ``bsp`` (``Reading.mixed``). Call ``forget`` to read again.

        Args:
            rows: The row numbers. None reads all rows of a dense table.
            out: The array to read into.
            timeout: The longest time to wait, in seconds. None waits without a limit.

        Returns:
            The rows and their clocks.

        Raises:
            TimeoutError: The servers did not answer in time.
        """
        if rows is None:
            return self._read(_agent.GET_RUN, 0, self.rows, out, timeout)
        ids = self._ids(rows)
        return self._read(_agent.GET_ROWS, ids, len(ids), out, timeout)

    def inc(self, rows: ArrayLike, delta: ArrayLike) -> None:
        """Add deltas to this slot's update of the current clock.

        ``clock`` sends the update. The servers then apply it to the rows by the table's rule.

        Args:
            rows: The row numbers. The deltas of a row that occurs twice are added up.
            delta: An array of shape (len(rows), dim).
        """
        ids = self._ids(rows)
        self._write(_agent.INC_ROWS, ids, len(ids), delta)

    def inc_run(self, first: int, delta: ArrayLike) -> None:
        """Add deltas to consecutive rows of a dense table, like ``inc``.

        Args:
            first: The number of the first row.
            delta: An array of shape (count, dim).
        """
        values = self._values(delta)
        self._write(_agent.INC_RUN, first, values.size // self.dim, values)

    def deltas(self, first: int = 0, count: int | None = None) -> Floats:
        """Return memory in which the program writes its deltas, so that they are sent without a copy.

        The memory is uninitialized: write every value, then call ``clock`` or ``flush``, which takes the deltas as
        ``inc`` would. From then on the array is read-only. Do not write through views or tensors that share its
        memory: a resent update would differ from the first one. Before that call the program cannot ``inc`` these rows,
        and ``get`` does not show the deltas. ``clock`` rejects NaN and Inf in them.

        Args:
            first: The number of the first row.
            count: The number of consecutive rows of a dense table. None takes all rows from ``first``.

        Returns:
            An array of shape (count, dim).
        """
        self._job._refuse_follower(f"add to the table {self.name}")
        count = self.rows - first if count is None else count
        if self._job._repeats:
            return np.empty((count, self.dim), np.float32)
        loans = self._job._lending()
        place, size, gone, _, _ = self._call(_agent.DELTAS, 0, first, count)
        values: Floats = loans.piece(place, size, gone)[: 4 * count * self.dim].view(np.float32)
        array = values.reshape(count, self.dim)
        self._job._lent_out.append((self._number, weakref.ref(array)))
        self._job._inced = True
        return array

    def _round(self, values: Floats) -> None:
        """Replace deltas, an array of shape (count, dim), by what the servers receive if they are added.

        Raises:
            NonFinite: A value is NaN or Inf.
            UsageError: The array has another type or shape.
        """
        if values.dtype != np.float32 or not values.flags.c_contiguous or not values.flags.writeable:
            raise UsageError(f"table {self.name}: rounding needs a contiguous, writeable array of float32")
        if values.size % self.dim:
            raise UsageError(f"table {self.name}: {values.size} values are not rows of {self.dim}")
        with self._job._lent(values) as of:
            self._call(_agent.ROUND, of.address, 0, values.size // self.dim)
            copy = of.copy(values)
            if copy.size:
                values[...] = copy.reshape(values.shape)

    def prefetch(self, rows: ArrayLike) -> None:
        """Request rows that the program will read in this clock; the call does not wait."""
        ids = self._ids(rows)
        with self._job._lent(ids) as at:
            self._call(_agent.PREFETCH, 0, at.address, len(ids))

    def flush(self) -> None:
        """Start sending the deltas of this clock while the program continues to compute.

        The servers apply them only after ``clock``.
        """
        if self._job._repeats:
            return
        with self._job._taking_back(self._number):
            self._call(_agent.FLUSH)

    def forget(self) -> None:
        """Discard cached rows, so that the next read asks the servers."""
        self._call(_agent.FORGET)

    def weigh(self, weight: float) -> None:
        """Set the weight of this clock's update, for a table with ``combine="weighted"``.

        Args:
            weight: How much the update counts, for example its number of tokens.
        """
        self._job._refuse_follower(f"weigh its update of the table {self.name}")
        if self._job._repeats:
            return
        self._job._await_exchange()
        self._job._inced = True
        self._call(_agent.WEIGH, struct.unpack("<q", struct.pack("<d", weight))[0])

    def stored_rows(self) -> Rows:
        """Return the numbers of a sparse table's rows in ascending order, when the job has finished its clocks."""
        room = np.empty(0, np.int64)
        while True:
            with self._job._lent(room, load=False) as to:
                count = self._call(_agent.STORED, to.address, 0, len(room)).a
                if count <= len(room):
                    return to.copy(room)[:count].copy()
            room = np.empty(count + count // 8, np.int64)

    def _call(
        self, op: int, a: int = 0, b: int = 0, c: int = 0, timeout: float | None = None, d: int = 0
    ) -> _agent.Reply:
        self._job._await_exchange()
        return self._job._agent.call(op, self._number, a, b, c, timeout=timeout, d=d)

    def _ids(self, rows: ArrayLike) -> Rows:
        ids = np.asarray(rows)
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.dtype == np.uint64:  # rows of sparse tables are any 64 bits
            ids = ids.view(np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UsageError(
                f"table {self.name}: rows must be a list of integers, not an array of {ids.dtype} of shape {ids.shape}"
            )
        return np.ascontiguousarray(ids, dtype=np.int64)

    def _values(self, delta: ArrayLike) -> Floats:
        values = np.asarray(delta)
        if values.dtype != np.float32:
            if values.dtype.kind not in "fiu":
                raise UsageError(f"table {self.name}: values must be float32, not {values.dtype}")
            values = values.astype(np.float32)
        if values.ndim == 0 or (values.shape[-1] != self.dim and (values.ndim > 1 or values.size % self.dim)):
            raise UsageError(
                f"table {self.name}: array of shape {values.shape} does not fit; each row has {self.dim} values"
            )
        return np.ascontiguousarray(values)

    def _read(
        self,
        op: int,
        which: Rows | int,
        count: int,
        out: Floats | None,
        timeout: float | None,
        flags: int = 0,
    ) -> Reading:
        if out is None:
            out = np.empty((count, self.dim), np.float32)
        if out.dtype != np.float32 or out.size != count * self.dim or not out.flags.writeable:
            raise UsageError(
                f"table {self.name}: out is {out.dtype} of shape {out.shape}; it must be writeable float32 with room "
                f"for {count} rows of {self.dim} values"
            )
        job = self._job
        with job._lent(out, load=False) as to, job._lent(which) as at:
            reply = self._call(op, to.address, at.address, count, timeout, flags)
            copy = to.copy(out)
            if copy.size:
                out[...] = copy.reshape(out.shape)
        return Reading(out, reply.a, reply.b)

    def _write(self, op: int, which: Rows | int, count: int, delta: ArrayLike) -> None:
        values = self._values(delta)
        if values.size != count * self.dim:
            raise UsageError(
                f"table {self.name}: array of shape {values.shape} does not fit {count} rows of {self.dim} values"
            )
        self._job._refuse_follower(f"add to the table {self.name}")
        if self._job._repeats:
            return
        self._job._await_exchange()
        self._job._inced = True
        with self._job._lent(values) as of, self._job._lent(which) as at:
            self._call(op, of.address, at.address, count)


class _Lent:
    """An array in memory that the agent can reach: the array itself if it is shared, otherwise a copy."""

    def __init__(self, job: Job, array: NDArray[Any] | int, load: bool) -> None:
        self._job = job
        self._borrowed: Lot | None = None
        if isinstance(array, int):  # a row number
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
        """Return the copy's values, or an empty array if there is no copy."""
        if self._borrowed is None:
            return np.empty(0, like.dtype)
        return self._borrowed.bytes[: like.nbytes].view(like.dtype)

    def __enter__(self) -> _Lent:
        return self

    def __exit__(self, *_: object) -> None:
        if self._borrowed is not None:
            self._job._spare.append(self._borrowed)


class Job:
    """This process's membership in a job. ``perdure.start`` and ``perdure.join`` create it.

    Used as a context manager, it finishes this process's work on normal exit. If the block raises, the slot is released
    for a replacement process.

    Example:
        >>> with perdure.join() as job:
        ...     table = job.table("w", rows=1000, dim=16, rule=perdure.SGD(0.1))
        ...     job.run(lambda clock: table.inc(*gradients(clock)))
    """

    def __init__(self, hello: dict[str, Any], owner: _Owner | None = None, island: Island | None = None) -> None:
        self._island = island  # None: this process is the only one of its slot
        attached: dict[str, Any] | None = None
        if island is not None and island.rank > 0:
            self._agent, attached = island.attach()
        else:
            self._agent = Agent()
        self._owner = owner
        self._regions = Regions()
        self._spare: list[Lot] = []
        self._loans: Loans | None = None
        self._lent_out: list[tuple[int, weakref.ref[Floats]]] = []  # table and array of the current clock's deltas
        self._mapping = threading.Lock()
        self._finished = False
        self._shown: list[str] = []  # environment variables that this job has set
        self._sending: Sending | None = None  # of a large state of the current clock
        self._exchange: Exchange | None = None  # ends the clock in another thread, while the program continues
        self._inced = False  # whether this process has deltas of the current clock, which would die with it
        self._asked = 0  # how often the program has read the job's clock and not printed it
        self._saves_end = False  # whether DataParallel ends the job, in a clock that has the state after the last step
        self._ended_itself = False  # whether the program has called end_job
        self._end_wanted = False  # whether DataParallel ends the job at the next mark
        self._repeats = False  # whether the program repeats a step whose updates have been applied, so none are sent
        self._trained = False  # whether a DataParallel, ServerOptimizer or DiLoCo trains a model in this job
        self._saves_at_cuts = False  # whether a checkpoint needs a state that only this program has
        self._epochs = Epochs()
        self._sampler: Sampler | None = None
        self._observer = bool(hello.get("observer"))
        try:
            said = attached
            if said is None:
                said = json.loads(self._agent.call(_agent.HELLO, text=json.dumps(hello).encode()).text)
            if island is not None:
                if island.rank == 0:
                    said["now"] = self._now()
                    island.admit(self._agent, said)
                island.now = _Now.of(said["now"])
        except BaseException:
            self._agent.close(finished=False)
            raise
        self.slot: int = said["slot"]
        self.version: str = said["version"]  #: version of the perdure program that runs as this program's agent
        self.spec: dict[str, Any] = said["job"]  #: the job's specification, in the form of run.json
        self._state_bytes: int = said["state_bytes"]  # max size of a slot state
        self._state_why: str = said.get("state_why", "")  # why larger states cannot be saved

    @property
    def _stream(self) -> int:
        """A number that differs between all ranks of the job, for seeds."""
        return self.slot if self._island is None else self.slot + self._island.rank * int(self.spec["slots"])

    @property
    def run_folder(self) -> Path | None:
        """The run's directory, or None if it is on another machine or PERDURE_RUN is not set."""
        named = self._owner.folder if self._owner is not None else os.environ.get("PERDURE_RUN")
        return Path(named) if named else None

    def events(self) -> Any:
        """Return the job's events as a pandas DataFrame: see ``perdure.Run.events``."""
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
        """Create a table, or attach to the table of that name. Every slot must call it before its first clock.

        Args:
            name: The table's name. All slots must pass the same settings for it.
            rows: The number of rows of a dense table. None makes the table sparse: every 64-bit number is a row.
            dim: The number of values in a row.
            rule: How the servers apply an update to a row.
            init: The initial values: ``zeros``, ``uniform`` in [-scale, scale), or ``normal``.
            scale: The bound of ``uniform``, or the standard deviation of ``normal``.
            combine: ``each`` applies the rule to every slot's update. ``sum``, ``mean`` and ``weighted`` apply it once
                per clock to the combined update; they need ``bsp``.
            settings: More fields, see docs/TABLES.md: ``evict=10000``, ``whole=True``, ``encoding``, ``distance``.

        Returns:
            The table.

        Raises:
            UsageError: The settings are invalid, or differ from those of the existing table.
        """
        if init == "zeros" and scale:
            raise UsageError(
                f"table {name}: init='zeros' takes no scale; choose init='uniform' or init='normal', or omit scale"
            )
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
        if settings.get("transient"):
            self._saves_at_cuts = True
        return Table(self, reply.a, json.loads(reply.text))

    def clock(self) -> int:
        """End the iteration and send this slot's update.

        Returns:
            The clock to work on next: an earlier one after a rollback, and the same one when the slot's work has ended.
        """
        self._refuse_exchange("the program cannot end the clock itself: omit overlap")
        self._refuse_island("clock")
        before = self._begin_clock()
        now = self._end_clock()
        if self._sampler is not None:
            self._sampler._after_clock(now != before)
        return now

    def _begin_clock(self) -> int:
        """Add the Sampler's position to this slot's update. Return the clock with a Sampler, and otherwise -1."""
        if self._sampler is None:
            return -1
        before = self._now().clock
        self._sampler._before_clock()
        return before

    def _end_clock(self) -> int:
        """End the iteration for ``clock``."""
        sending, self._sending = self._sending, None
        with self._taking_back(None):
            try:
                now = self._agent.call(_agent.CLOCK).a
            except PerdureError:
                if sending is not None and sending.failed is not None:
                    raise sending.failed from None  # the agent reports only that the state did not come
                raise
        self._inced = False
        if sending is not None:
            sending.ended.wait()
        return now

    def _await_exchange(self) -> None:
        """Wait until the exchange in progress has ended the clock, so that a later call belongs to the next one.

        Without the wait, the clock of a call would depend on the speed of the exchange's thread.
        """
        if self._exchange is not None:
            self._agent.check()  # a forked child would wait for a thread that it does not have
            self._exchange.await_clock()

    def _refuse_exchange(self, instead: str) -> None:
        """Raise UsageError, or the error of the exchange, if an outer step of DiLoCo has not been merged yet."""
        if self._exchange is not None:
            self._agent.check()
            self._exchange.check()
            raise UsageError(f"the result of an outer step of DiLoCo is still to be merged, so {instead}")

    def _refuse_follower(self, what: str) -> None:
        """Raise UsageError in ranks that do not speak for their island."""
        if self._island is not None and self._island.rank > 0:
            raise UsageError(
                f"rank {self._island.rank} of an island cannot {what}; do so on rank 0, if os.environ['RANK'] == '0'"
            )

    def _refuse_island(self, name: str) -> None:
        """Raise UsageError in an island, unless DiLoCo calls: the other ranks would not know of the new clock."""
        if self._island is not None and self._island.now is not None:
            raise UsageError(
                f"job.{name} does not work in an island of {self._island.size} ranks, whose clocks DiLoCo ends; use "
                "DiLoCo, or omit --nproc-per-learner"
            )

    def _linger(self) -> None:
        """Wait a few seconds for the end of the clock, so that the steps before it are not lost with this process."""
        if self._exchange is not None:
            self._exchange.linger(_LINGER)

    @property
    def now(self) -> int:
        """The clock to work on."""
        if self._exchange is not None:
            self._agent.check()
            now = self._exchange.before.clock + 1
        elif self._island is not None:
            now = self._now().clock - int(self._repeats)
        else:
            now = self._agent.call(_agent.NOW).a - int(self._repeats)
        return _Clock.of(now, self)

    def at(self, clock: int) -> None:
        """Set the clock at which an observer reads. It also becomes ``now``, and discards cached rows.

        A later ``get`` waits until the updates of all earlier clocks are applied, or until the job has ended.

        Args:
            clock: The clock; 0 until the first call.
        """
        self._agent.call(_agent.AT, a=clock)

    @property
    def end(self) -> int:
        """The clock at which the slot's work ends, or 0 if it is not known yet."""
        return self._now().end

    @property
    def share(self) -> Share:
        """This slot's share of the data: its rank among the slots that participate in the current clock."""
        return self._now().share

    @property
    def ended(self) -> bool:
        """Reports whether the slot's work has ended. From then on ``clock`` keeps returning the same clock."""
        self._asked += 1
        if self._exchange is not None:
            self._agent.check()
            return bool(0 < (self._exchange.before.end or self.spec["clocks"]) <= self._exchange.before.clock + 1)
        return not self._repeats and (self._end_wanted or self._now().ended)

    def end_job(self) -> None:
        """Ask the job to end as soon as every slot can, for example because the goal is reached."""
        self._await_exchange()
        self._refuse_follower("end the job")
        self._ended_itself = True
        if self._saves_end:
            self._end_wanted = True
        else:
            self._agent.call(_agent.END_JOB)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs from the current one to ``count`` - 1: 0 at first, a later one in a replacement process."""
        if count < 0:
            raise UsageError(f"epochs({count}): the number of epochs must be 0 or more")
        self._epochs.used, self._epochs.count = True, count
        return self._each_epoch(count)

    def _each_epoch(self, count: int) -> Iterator[int]:
        if self._sampler is None and not self._trained:
            raise UsageError("epochs needs a Sampler, DataParallel, ServerOptimizer or DiLoCo, which saves the epoch")
        of = self._sampler if self._sampler is not None else self._epochs
        more = True
        while more and of.epoch < count:
            epoch = of.epoch
            yield epoch
            more = of._finish_epoch(epoch)

    def run(self, step: Callable[[int], None]) -> None:
        """Call ``step`` for each clock of the slot, then wait until the whole job is done.

        After a rollback it continues with an earlier clock.

        Args:
            step: The function that computes one iteration. It receives the clock and may call ``end_job``.
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
        """End the slot's work, and wait until the whole job is done.

        Remaining clocks are skipped: the job is asked to end as soon as every slot can.

        Raises:
            RolledBack: The job was rolled back meanwhile. Start this program again to repeat the lost work.
        """
        self._to_end(lambda: None)
        self._agent.call(_agent.FINISH)
        self._finished = True

    def _to_end(self, between: Callable[[], None]) -> None:
        """Ask the job to end, and finish the remaining clocks without work. between runs before each clock ends."""
        self._refuse_island("finish")
        self._refuse_exchange("call its finish before that of the job, or use it as a context manager")
        begun = now = self._now()
        if not now.ended:
            self._agent.call(_agent.END_JOB)
        while not now.ended:
            between()
            self.clock()
            now = self._now()
            if now.generation != begun.generation:
                raise RolledBack("the job was rolled back while it was ending; start this program again")

    def _now(self, mark: int = 0) -> _Now:
        """Return the clock, its end and share, and the generation.

        Args:
            mark: What this program has of the shared state: flags of ``_agent``, or 0.
        """
        if self._island is not None and self._island.now is not None:
            self._agent.check()
            return self._island.now
        self._await_exchange()
        clock, end, share, generation, text = self._agent.call(_agent.NOW, a=mark)
        left = text == b"left"
        saver = int(text) if text and not left else -1
        return _Now(clock, end, generation, Share(share >> 32, share & 0xFFFFFFFF), saver, left)

    def settle(self) -> None:
        """Wait until the updates of all clocks that this slot has finished are applied."""
        self._await_exchange()
        self._agent.call(_agent.SETTLE)

    def await_slots(self) -> None:
        """Wait until every slot has a process, so that all start together."""
        self._agent.call(_agent.AWAIT_SLOTS)

    def save_state(self, state: bytes) -> None:
        """Save program state, such as a position in the data, with the slot's next update.

        If another process takes over the slot, its ``load_state`` returns this state.

        Args:
            state: Of any size, or up to 1 MiB if this machine cannot reach the job's store.
        """
        self._refuse_island("save_state")
        if self._trained:
            raise UsageError(
                "the training of this job saves the slot's state, which would replace this one: list an object with "
                "state_dict and load_state_dict in its state= instead"
            )
        self._await_exchange()
        with self._lent(np.frombuffer(state, np.uint8)) as at:
            self._agent.call(_agent.SAVE_STATE, a=at.address, c=len(state))

    def _save(self, state: Encoded) -> None:
        """Save a state like ``save_state``. A large one is sent while the program continues, and must not change.

        ``clock`` waits until it is stored.
        """
        if state.size <= min(self._state_bytes, _PIECE):
            room = self._borrow(state.size)
            try:
                state.write(room.bytes[: state.size])
                self._agent.call(_agent.SAVE_STATE, a=room.address, c=state.size)
            finally:
                self._spare.append(room)
            return
        self._agent.call(_agent.STREAM_STATE, c=state.size)
        self._sending = Sending(self._agent, state, self._borrow(_PIECE), self._spare)

    def _load(self, slot: int | None = None) -> tuple[Any, Saved]:
        """Return the state that ``_save`` saved before the current clock, decoded, or None, and its clock.

        Args:
            slot: The slot whose program saved it; None: this one.
        """
        self._await_exchange()
        kind = 0 if slot is None else _agent.LOADS_OTHER
        size, clock, older, _, _ = self._agent.call(_agent.LOAD_STATE, a=kind, b=slot or 0)
        if size < 0:
            return None, Saved(None, clock, older)
        room = self._borrow(max(size, 1))
        self._agent.call(_agent.FETCH, a=room.address)
        state = decode(room.bytes[:size].data)
        if room.size <= _PIECE:  # a larger one is needed once
            self._spare.append(room)
        return state, Saved(None, clock, older)

    def _save_copy(self, state: Encoded) -> None:
        """Save a copy of the shared state for the process that needs it, and wait until it is stored."""
        self._agent.call(_agent.STREAM_STATE, a=1, c=state.size)
        sending = Sending(self._agent, state, self._borrow(_PIECE), self._spare)
        sending.ended.wait()
        if sending.failed is not None:
            raise sending.failed
        self._agent.call(_agent.COPIED)

    def _load_copy(self) -> Lot:
        """Return the copy of the shared state that another process saves for this one, for ``decode``."""
        size = self._agent.call(_agent.LOAD_STATE, a=_agent.LOADS_COPY).a
        room = self._map(size)
        self._agent.call(_agent.FETCH, a=room.address, c=size)
        return room

    def _load_draft(self) -> Any:
        """Return the slot's draft in the job's store, decoded, or None."""
        size = self._agent.call(_agent.LOAD_STATE, a=_agent.LOADS_DRAFT).a
        if size <= 0:
            return None
        room = self._map(size)
        self._agent.call(_agent.FETCH, a=room.address)
        with contextlib.suppress(UsageError):  # another program wrote it
            return decode(room.bytes[:size].data)
        return None

    def load_state(self) -> bytes | None:
        """Return the state that the slot saved before the current clock, or None."""
        return self.load_saved().state

    def load_saved(self) -> Saved:
        """Return the state like ``load_state``, together with the clock in which it was saved."""
        self._refuse_island("load_saved")
        self._await_exchange()
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
        """Report measurements for ``perdure status``, series.csv and reports, without waiting.

        Args:
            samples: The number of samples processed.
            measures: Any of train_loss, test_loss, test_accuracy, train_rmse and test_rmse.

        Raises:
            UsageError: A measure is unknown.
        """
        unknown = measures.keys() - {"train_loss", "test_loss", "test_accuracy", "train_rmse", "test_rmse"}
        if unknown:
            raise UsageError(
                f"unknown measure {', '.join(sorted(unknown))}; choose from train_loss, test_loss, test_accuracy, "
                "train_rmse, test_rmse"
            )
        finite = {name: float(v) for name, v in measures.items() if math.isfinite(v)}
        self._report(samples, **finite)

    def _report(self, samples: int = 0, **said: Any) -> None:
        """Send a Report message (docs/formats/messages.md)."""
        if self._exchange is not None and self._exchange.postpone(lambda: self._report(samples, **said)):
            return  # it belongs to the next clock, and the program does not wait for that
        self._agent.call(_agent.REPORT, a=samples, text=json.dumps(said).encode())

    def _warn(self, text: str, stacklevel: int) -> None:
        """Issue a RuntimeWarning, and show it on the console of the job, whose users may not read the program's log."""
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
        with contextlib.suppress(PerdureError):  # the job may have ended
            self._report(warning=text)

    def _report_waited(self, seconds: float) -> None:
        """Report for how long the program has waited since the last report. From the first one on, only they count."""
        self._report(waited_ns=int(1e9 * seconds))

    def empty(self, shape: int | Sequence[int], dtype: str = "float32") -> NDArray[Any]:
        """Return an uninitialized array in memory shared with the agent.

        Reading into it, or calling ``inc`` with it, saves one copy.

        Args:
            shape: The array's shape.
            dtype: The type of its values.

        Returns:
            The array.
        """
        of = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(sizes)
        region = self._map(max(1, count * of.itemsize))
        return region.bytes[: count * of.itemsize].view(of).reshape(sizes)

    def close(self) -> None:
        """Leave the job. Unless ``finish`` has returned, the slot becomes free for another process."""
        self._linger()
        self._agent.close(self._finished)
        for name in self._shown:  # otherwise this process's next job would ask for the same slot
            os.environ.pop(name, None)
        self._shown = []
        if self._owner is not None:
            self._owner.close(self._finished, self._saves_at_cuts)

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
        """Return the memory that the agent lends to this program. The first call creates it."""
        with self._mapping:
            if self._loans is None:
                loans = Loans()
                self._agent.call(_agent.LEND, files=[loans.fd])
                self._loans = loans
            return self._loans

    @contextlib.contextmanager
    def _taking_back(self, table: int | None) -> Iterator[None]:
        """Wrap a call in which the agent takes lent arrays, of one table or of all; make them read-only after it."""
        try:
            yield
        except (NonFinite, UsageError):
            raise  # the agent took nothing, so the program can correct the values
        except BaseException:  # it is unknown whether the agent took them
            self._take_back(table)
            raise
        self._take_back(table)

    def _flush_lent(self, own: set[int]) -> None:
        """Flush the tables whose deltas are in lent memory, except some, so that the program cannot change them."""
        for table in {of for of, _ in self._lent_out} - own:
            with self._taking_back(table):
                self._agent.call(_agent.FLUSH, table)

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
        """Return shared memory of at least this size for a copy. The caller appends it to ``_spare`` after use."""
        self._agent.check()  # a forked child would write into its parent's memory
        with self._mapping:
            fits = [r for r in self._spare if r.size >= size]
            if fits:
                least = min(fits, key=lambda r: r.size)
                self._spare.remove(least)
                return least
        return self._map(1 << max(12, (size - 1).bit_length()))

    def _map(self, size: int, share: Callable[[int], None] | None = None) -> Lot:
        """Return new memory that the agent has mapped. share: gets the file, which is closed then."""
        while self._regions.gone:  # no array refers to these any more, so the agent can unmap them
            try:
                gone = self._regions.gone.pop()
            except IndexError:  # another thread was faster
                break
            self._regions.remove(gone)
            self._agent.call(_agent.UNMAP, a=gone.address, timeout=_agent.PROMPT)
        region = Lot(size)
        try:
            region.address = self._agent.call(_agent.MAP, a=size, files=[region.fd], timeout=_agent.PROMPT).a
            if share is not None:
                share(region.fd)
        finally:
            region.close_file()
        self._regions.add(region)
        return region

    def _run(self) -> Run:
        folder = self.run_folder
        if folder is None:
            raise UsageError(
                "the run's directory is unknown; set PERDURE_RUN, or read the directory with perdure.Run(DIRECTORY)"
            )
        return Run(folder)

    def progress(self, every: float | None = None) -> Progress:
        """Show the job's progress in one line: see ``Progress``.

        Args:
            every: Seconds between two lines.
        """
        return self._run().progress(every)

    def dashboard(self, height: int = 700) -> Dashboard:
        """Show the job's dashboard in a notebook cell. It needs ``perdure.start(args=["--dashboard"])``.

        Args:
            height: The height of the frame in pixels.

        Raises:
            UsageError: The job has no dashboard.
        """
        return dashboard_of(self._run().folder, height, framed=self._owner is not None)

    def plot(self, measure: str = "train_loss", ax: Any = None) -> Any:
        """Plot a measure over time so far: see ``perdure.Run.plot``."""
        return self._run().plot(measure, ax)


class _Owner:
    """The ``perdure up`` process of a job that this program has started: it runs the coordinator and the servers.

    The process announces the job's address on a pipe that it inherits (docs/formats/agent.md).
    """

    patience = 120.0  #: seconds that the job may take to start

    def __init__(self, folder: Path, args: Sequence[str]) -> None:
        self.folder = folder
        pipe, theirs = os.pipe()
        with open(pipe, "rb") as announced:
            try:
                self.process = _agent.begin(
                    ["up", "--with-parent", f"{_ANNOUNCE}={theirs}", "--out", str(folder), *args],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs],
                )
            finally:
                os.close(theirs)
            self.said: deque[str] = deque(maxlen=100)  # the last lines only: a job may print for days
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
            poll = select.poll()  # select does not take files with numbers from 1024 on
            poll.register(announced, select.POLLIN)
            in_time = bool(poll.poll(self.patience * 1000))
            line = announced.readline() if in_time else b""  # empty: the process has ended
        if line:
            self._take(json.loads(line))
            return
        if not in_time:
            self.process.kill()
        self.process.wait()
        self._listener.join(timeout=10)
        last = self.said[-1].removeprefix("perdure: ") if self.said else "perdure up printed nothing"
        if in_time and _ANNOUNCE in last:  # an unknown flag
            last = f"{_agent.binary()} and this package have different versions; install the same version of both"
        raise UsageError(last if in_time else f"the job did not start within {self.patience:g} s: {last}")

    def _take(self, announced: dict[str, Any]) -> None:
        if announced["protocol"] != _agent.PROTOCOL:
            self.close(finished=False)
            raise UsageError(
                f"{_agent.binary()} has version {announced['version']} with protocol {announced['protocol']}, but "
                f"this package needs protocol {_agent.PROTOCOL}; install the same version of both"
            )
        self.coordinator: str = announced["coordinator"]
        self.secret_file: str = announced["secret_file"]
        self.keys: str = announced["keys"]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    def close(self, finished: bool, saves_at_cuts: bool = False) -> None:
        """Wait until a finished job has written its files, or an unfinished job its last checkpoint.

        Args:
            finished: Whether the program has finished its work.
            saves_at_cuts: Whether a new checkpoint would need the program, so that an unfinished job cannot make one.
        """
        if not finished:
            self.process.terminate()  # the last checkpoint takes at most --grace
        try:
            if not finished and saves_at_cuts:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=0.5)  # otherwise both signals could become one
                self.process.terminate()
            self.process.wait()
        except KeyboardInterrupt:
            if not finished:
                self.process.terminate()  # the second signal ends it without the checkpoint
                self.process.wait()
            raise
        self._listener.join()  # the last line is the reason of a failure
        if finished and self.process.returncode != 0:
            raise PerdureError(self.said[-1].removeprefix("perdure: ") if self.said else "perdure up failed")


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
    """Join a job as one of its workers.

    ``perdure launch`` and ``perdure up --exec`` pass the job's address in the environment, so programs that they start
    need no arguments.

    Args:
        coordinator: The coordinator's address. By default it is taken from the environment.
        secret_file: The file with the job's secret. By default it is taken from the environment.
        slot: The slot to take. None takes the slot that the environment names, or any free one.
        observer: Only read, without taking a slot.
        grow: Add a slot to the job if none is free.
        saves_at_cuts: See Config.SavesAtCuts in Go.
        cache_mb: Max size of cached rows in MiB; 0 means 256.
        window_mb: Max size of updates in flight in MiB; 0 means 64.
        retain_mb: Max size in MiB of updates kept until a checkpoint; 0 means a sixteenth of memory, at least 512.
        patience: How long to look for a coordinator, in seconds.
        lost_after: After how many seconds without contact the job counts as lost.
        keys: The directory of a worker's keys, with the job's secret. By default it is the directory in PERDURE_KEYS.

    Returns:
        The membership in the job.

    Raises:
        Refused: The job does not admit this process.
        UsageError: The arguments or the environment are invalid.
    """
    island = None if coordinator or observer else _island.of_environment()
    if slot is None and not observer and island is None:
        _refuse_rank()
    hello = {
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
    try:
        job = Job(hello, island=island)
    except Done as error:
        if os.environ.get("PERDURE_SLOT") and not observer:  # a supervisor has started this process too late
            raise SystemExit(f"perdure: {error}: this program has nothing to do") from None
        raise
    if on_join is not None and not observer:
        on_join(job)
    if not coordinator and not observer:
        job._shown = _nested.show_ranks(job.slot, job.spec["slots"], island is not None)
        if os.environ.get("PERDURE_SLOT"):  # a supervisor has started this process, and starts it again
            _end_after_rollbacks()
    return job


def _end_after_rollbacks() -> None:
    """Let RolledBack end this program with one line instead of a traceback, and with its exit code."""
    before = sys.excepthook
    if getattr(before, "ends_after_rollbacks", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, RolledBack):
            before(kind, error, trace)
            return
        says = error if issubclass(kind, _Left) else "the job was rolled back: this program ends, and is started again"
        print(f"perdure: {says}", file=sys.stderr)
        _nested.end(EXIT_ROLLED_BACK)

    hook.ends_after_rollbacks = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _refuse_rank() -> None:
    """Raise UsageError if several processes of a torch.distributed group, such as torchrun's, share a slot.

    In a group whose members are the job's slots, the rank equals the slot.
    """
    group, slot = sys.modules.get("torch.distributed"), os.environ.get("PERDURE_SLOT", "")
    if group is None or not slot or not group.is_available() or not group.is_initialized():
        return
    rank, size = group.get_rank(), group.get_world_size()
    if size > 1 and str(rank) != slot:
        raise UsageError(
            f"this process is rank {rank} of a torch.distributed group of {size} in slot {slot}, but a slot is one "
            "process: do not use torchrun; start one process per GPU with perdure launch"
        )


#: Settings of a new job. The flags _FROM_RUN start from an earlier run, and keep its settings.
_NEW_JOB = {"servers": 2, "recovery": "resend:auto", "consistency": "bsp", "clocks": 1_000_000_000}
_FROM_RUN = ("--resume", "--fork", "--from")


def start(
    *,
    servers: int | None = None,
    recovery: str | None = None,
    consistency: str | None = None,
    clocks: int | None = None,
    out: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
) -> Job:
    """Start a job on this machine with this program as its only worker, and join it. The job ends with the program.

    Under ``perdure launch`` and ``perdure up --exec`` it joins the existing job instead and ignores its arguments.

    Args:
        servers: The number of servers; 2 by default.
        recovery: The recovery strategy; ``resend:auto`` by default.
        consistency: The consistency model; ``bsp`` by default.
        clocks: The number of clocks after which the job ends; 1,000,000,000 by default.
        out: The run's directory. None creates one among the temporary files and does not delete it.
        args: More flags of ``perdure up``. With ``--resume``, ``--fork`` or ``--from``, defaults are that run's.

    Returns:
        The membership in the job.

    Raises:
        UsageError: The job cannot be started with these settings.

    Example:
        >>> job = perdure.start(servers=2)
    """
    if os.environ.get("PERDURE_COORDINATOR"):
        return join()
    _island.refuse_alone()
    _nested.refuse_ray()
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="perdure-")) / "run"
    given = {"servers": servers, "recovery": recovery, "consistency": consistency, "clocks": clocks}
    flags: dict[str, Any] = {} if any(arg.split("=")[0] in _FROM_RUN for arg in args) else dict(_NEW_JOB)
    flags |= {flag: value for flag, value in given.items() if value is not None}
    owner = _Owner(folder, ["--workers=1", *(f"--{flag}={value}" for flag, value in flags.items()), *args])
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
