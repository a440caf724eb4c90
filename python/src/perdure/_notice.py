"""Writes a draft of the last step on SIGTERM between two outer steps of DiLoCo, before the process ends.

Processes receive SIGTERM when their machine is preempted or their host ends. The program may be in an evaluation, a
long call into C, or a collective that never ends. So everything that a draft needs, except weights and optimizers, is
copied after each step, within the share of time that drafts may take. On SIGTERM a thread writes the copy with the
current weights and optimizers, while the program is kept from its next step. Then the process ends, or runs the
program's own handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from . import _draft

#: Seconds to wait for the end of a step that SIGTERM interrupts, or for the next one if the last one was not kept.
_AMID = 15.0
_LATE = 5.0


class Notice:
    """Writes the last step's draft on SIGTERM. If it is not created in the main thread, it writes no drafts.

    Only the main thread may call its methods. From ``step`` to the call of ``keep``, ``skip`` or ``drop`` that ends the
    step, it holds a lock without which no draft is written.

    Args:
        weights: Returns the tensors that hold the slot's weights: the parameters, unless the model shows others. No
            draft is written if they differ at SIGTERM from their values after the step: the program may have replaced
            them.
        buffers: Returns the buffers, which the model changes when it runs. They are copied.
        write: Writes a draft from the kept state and the copied buffers. It runs in a thread, and must take no lock
            that the program may hold.
        prepare: Runs in that thread when it starts.
        linger: Called there on SIGTERM before the draft is written.
        keeps: Whether drafts are written. Otherwise only linger is called.
    """

    def __init__(
        self,
        weights: Callable[[], Sequence[torch.Tensor]],
        buffers: Callable[[], Sequence[torch.Tensor]],
        write: Callable[[Any, Sequence[torch.Tensor]], None],
        *,
        prepare: Callable[[], None] = lambda: None,
        linger: Callable[[], None] = lambda: None,
        keeps: bool = True,
    ) -> None:
        self._weights, self._buffers, self._write, self._linger = weights, buffers, write, linger
        self._keeps = keeps
        self._kept: tuple[Any, list[torch.Tensor], torch.Tensor] | None = None
        self._wanted = False  # whether steps would be lost without a draft
        self._lock = threading.Lock()  # held while a step changes the weights, and while a draft is written
        self._amid = False  # whether the main thread holds it
        self._late = False  # whether SIGTERM has come, and the next step must be kept whatever that costs
        self._news, self._seen, self._done = threading.Event(), threading.Event(), threading.Event()
        self._owed = False  # whether the program's own handler must run at the end of the step
        self._passes = False  # whether the next SIGTERM is for the program's own handler
        self._cost, self._last = 0.0, 0.0  # seconds that the last call of keep took, and its end
        self._before: Any = None
        self._on = False
        self._process = os.getpid()
        self._libc = ctypes.CDLL(None)
        with contextlib.suppress(ValueError):  # this is not the main thread
            self._before = signal.signal(signal.SIGTERM, self._told)
            self._on = True
        if not self._on:
            return
        # The C handler of a signal writes its number here, also while Python runs no code in the main thread.
        self._reads, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._others = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        _forget_in_children(self)
        threading.Thread(target=self._run, args=(prepare,), name="perdure-notice", daemon=True).start()

    def affords(self) -> bool:
        """Reports whether the last call of keep took only a small share of the time since then."""
        since = time.monotonic() - self._last
        return self._on and self._keeps and (self._late or self._cost <= _draft.SHARE * since)

    def keep(self, make: Callable[[], Any], spent: float = 0.0) -> None:
        """Keep the state that a draft of the last step needs.

        Args:
            make: Returns a copy of everything except weights, buffers and optimizers.
            spent: Seconds already spent on a part of these copies.
        """
        begun = time.monotonic()
        with torch.no_grad():
            self._kept = make(), [b.detach().clone() for b in self._buffers()], self._sum()
        self._last = time.monotonic()
        self._cost = spent + self._last - begun
        self._news.set()
        self._over()

    def step(self) -> None:
        """Note that a step begins, which changes weights and optimizers."""
        if self._on and not self._amid:
            self._lock.acquire()  # waits if a draft is being written, after which the process usually ends
            while self._must_stop():
                self._lock.release()
                self._done.wait(0.1)
                self._lock.acquire()
            self._amid = True
        self._kept, self._wanted = None, self._keeps

    def lacks(self) -> bool:
        """Reports whether the last step was skipped."""
        return self._on and self._wanted and not self._amid and self._kept is None

    def skip(self) -> None:
        """Note that a step has ended whose state is not kept. The next one will be, if SIGTERM comes before."""
        self._kept = None
        self._over()

    def drop(self) -> None:
        """Discard the kept state: the step was sent, or the program is about to change state that a draft lacks."""
        self._kept, self._wanted = None, False
        self._news.set()
        self._over()

    def close(self) -> None:
        """Restore the previous SIGTERM handler."""
        self.drop()
        if not self._on:
            return
        self._on = False
        if signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self._before)
        if (now := signal.set_wakeup_fd(self._others)) != self._wakes.fileno():
            signal.set_wakeup_fd(now)  # another library has replaced it
        self._wakes.close()  # ends the thread

    def _must_stop(self) -> bool:
        """Reports whether the main thread must not change the weights until the thread is done."""
        return False

    def _over(self) -> None:
        if self._amid:
            self._amid = False
            self._lock.release()
        if self._owed and (self._kept is not None or not self._wanted):
            self._owed = False
            self._done.wait()
            self._pass_on(signal.SIGTERM, None)

    # Signal handler

    def _told(self, number: int, frame: FrameType | None) -> None:
        # A forked child inherits this handler, and a later handler may call it when this notice is closed.
        if os.getpid() != self._process or self._passes or not self._on:
            self._passes = False
            self._pass_on(number, frame)
            return
        if not self._seen.wait(0.2):  # another library has replaced the file that wakes the thread
            with contextlib.suppress(OSError):
                self._wakes.send(bytes([number]))
        if not callable(self._before):
            return  # the thread ends the process
        if self._amid or (self._kept is None and self._wanted):
            self._owed = True
            return
        self._done.wait()
        self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._seen.clear()
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    # The thread

    def _run(self, prepare: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):  # the draft is written without the preparation, or its failure is reported
            prepare()
        while numbers := self._reads.recv(512):
            self._forward(numbers)
            if signal.SIGTERM in numbers and not self._passes:
                self._done.clear()
                self._seen.set()
                self._end()
        self._reads.close()

    def _forward(self, numbers: bytes) -> None:
        """Write signals to the file that another library waits for."""
        if self._others >= 0:
            with contextlib.suppress(OSError):
                os.write(self._others, numbers)

    def _end(self) -> None:
        """Write the draft. Then end the process, or let the program's own handler run."""
        self._linger()
        kept, locked = self._take()
        try:
            if kept is not None:
                state, buffers, total = kept
                if torch.equal(total, self._sum()):
                    self._write(state, buffers)
                else:
                    _say("the weights were replaced temporarily")
            elif self._wanted:
                _say("the program did not complete a step in time")
        except Exception as error:  # the process must end in any case
            _say(str(error))
        self._late = False
        self._finish(kept is not None, locked)

    def _finish(self, kept: bool, locked: bool = False) -> None:
        """End the process, or let the program's own handler run. locked: the thread holds the lock."""
        if not callable(self._before) and self._before != signal.SIG_IGN and self._is_handler():
            self._libc.signal(int(signal.SIGTERM), 0)  # Python allows it in the main thread only, which may be busy
            os.kill(os.getpid(), signal.SIGTERM)
        if locked:
            self._lock.release()
        self._done.set()
        if not kept and self._owed:  # the main thread may not reach the end of a step
            self._owed, self._passes = False, True
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_handler(self) -> bool:
        return self._on and signal.getsignal(signal.SIGTERM) == self._told

    def _take(self) -> tuple[Any, bool]:
        """Return the kept state, or None, and whether the lock is held."""
        end = time.monotonic() + _AMID
        late = time.monotonic() + _LATE
        while self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            if self._kept is not None or not self._wanted or time.monotonic() >= late:
                return self._kept, True
            self._late = True
            self._news.clear()
            self._lock.release()
            self._news.wait(max(0.0, late - time.monotonic()))
        return None, False

    def _sum(self) -> torch.Tensor:
        """Return the norms of all weights, which identify them."""
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(w.detach(), dtype=torch.float32) for w in self._weights()]
            return torch.stack([norm.to(norms[0].device) for norm in norms])  # asynchronous on a GPU


def _say(why: str) -> None:
    os.write(2, f"perdure: SIGTERM: no draft written: {why}\n".encode())  # the program may hold the lock of sys.stderr


_newest: weakref.ref[Notice] | None = None


def _forget_in_children(notice: Notice) -> None:
    """Let forked processes not wake the thread of their parent by their own signals."""
    global _newest
    if _newest is None:
        os.register_at_fork(after_in_child=_forget)
    _newest = weakref.ref(notice)


def _forget() -> None:
    notice = _newest() if _newest is not None else None
    if notice is not None and notice._on:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
