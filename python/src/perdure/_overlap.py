"""Outer steps that are exchanged while the program continues with inner steps (docs/design/diloco.md)."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .errors import RolledBack, UsageError

_BLOCK = 1 << 16  # values

if TYPE_CHECKING:
    from .job import Job, _Now


def checked(sync_every: int, overlap: Any, mix: Any) -> tuple[int, float | None]:
    """Return the settings of an overlap as plain numbers. Raises UsageError for invalid ones."""
    try:
        steps = -1 if isinstance(overlap, bool) else operator.index(overlap)
        part = None if mix is None else float(mix)
    except (TypeError, ValueError):
        raise UsageError(
            f"invalid overlap {overlap!r} or mix {mix!r}: choose a number of steps, and a fraction"
        ) from None
    if not 0 <= steps < sync_every:
        raise UsageError(
            f"invalid overlap {overlap!r}: choose 0 to {sync_every - 1} steps, fewer than sync_every={sync_every}"
        )
    if part is not None and not steps:
        raise UsageError("mix needs an overlap of 1 step or more")
    if part is not None and not 0 <= part < 1:
        raise UsageError(f"invalid mix {mix!r}: choose a number of at least 0 and below 1")
    return steps, part


def compression(compress: Any, compress_weights: Any) -> tuple[str | None, str | None]:
    """Return the encodings of the way up and down. Raises UsageError for unknown ones."""
    if compress not in (None, "bf16", "int8", "2bit"):
        raise UsageError(f"invalid compress {compress!r}: choose bf16, int8 or 2bit, or omit it")
    if compress_weights not in (None, "bf16", "int8"):
        raise UsageError(f"invalid compress_weights {compress_weights!r}: choose bf16 or int8, or omit it")
    return compress, compress_weights


def blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield parts of tensors of equal shapes that fit into a processor's cache, so that memory is read once."""
    if not all(t.is_contiguous() for t in tensors):
        yield tensors
        return
    flat = [t.view(-1) for t in tensors]
    for at in range(0, len(flat[0]), _BLOCK):
        yield tuple(t[at : at + _BLOCK] for t in flat)


class Window:
    """The weights that were sent with an outer step, and how its result is merged with the inner steps since then.

    Args:
        weights: The parameters.
        mix: As in ``DiLoCo``.
    """

    def __init__(self, weights: Sequence[torch.Tensor], mix: float | None) -> None:
        self.open = False  #: whether a result is still to be merged
        self.sent = [torch.empty_like(w, device="cpu") for w in weights]
        self._mix = mix

    def restart(self, weights: Sequence[torch.Tensor]) -> None:
        """Take the next change against the given weights, which are the shared ones."""
        if self._mix is not None:
            for sent, w in zip(self.sent, weights, strict=True):
                sent.copy_(w.detach())

    def resume(self, sent: Sequence[torch.Tensor]) -> None:
        """Continue at the beginning of a window, with weights that another process has sent."""
        for mine, w in zip(self.sent, sent, strict=True):
            mine.copy_(w)
        self.open = True

    def base(self, i: int, shared: torch.Tensor) -> torch.Tensor:
        """Return the weights against which the next change of tensor i is taken, in float32. shared: the shared ones.

        They are those into which ``merge`` has turned the slot's own, without the progress of the window.
        """
        return shared if self._mix is None else torch.lerp(shared, self.sent[i].to(torch.float32), self._mix)

    def merge(self, i: int, tensor: torch.Tensor, shared: torch.Tensor) -> None:
        """Add the progress of the window, or the fraction ``mix`` of it, to the base of the next change."""
        with torch.no_grad():
            sent, base = self.sent[i].to(tensor.device), self.base(i, shared).to(tensor.device)
            for weights, was, share in blocks(tensor.detach(), sent, base):
                # Only this order of the operations gives a slot without progress exactly the base.
                progress = weights.to(torch.float32) - was.to(torch.float32)
                if self._mix is not None:
                    progress.mul_(self._mix)
                weights.copy_(progress.add_(share))


class Exchange:
    """Ends a clock in a thread of its own and reads the result. The updates of the clock have been handed over.

    Args:
        job: The job. Its calls that belong to a clock wait until this one has ended.
        before: The clock.
        send: Starts to send the updates, and saves the state. It calls its argument when it has copied the part of the
            state that the program changes next.
        read: Reads the result.
    """

    def __init__(
        self, job: Job, before: _Now, send: Callable[[Callable[[], None]], None], read: Callable[[], None]
    ) -> None:
        self.before = before  #: the clock that ends, and this slot's share of it
        self.captured = threading.Event()  #: set when the program may change the state again
        self._job, self._send, self._read = job, send, read
        self._ticked, self._done = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._postponed: list[Callable[[], None]] = []
        self._postponing = threading.Lock()
        # A daemon, since it must not keep a program from exiting while servers are unavailable.
        self._thread = threading.Thread(target=self._run, name="perdure-exchange", daemon=True)
        self._thread.start()
        job._exchange = self

    def await_clock(self) -> None:
        """Wait until the clock has ended. Raises the error of a failed exchange. Its own thread never waits."""
        if threading.current_thread() is not self._thread:
            self._wait_for(self._ticked)

    def wait(self) -> None:
        """Wait for the result. Raises the error of the exchange, if it failed."""
        self._wait_for(self._done)

    def linger(self, seconds: float) -> None:
        """Wait until the clock has ended or could not, for at most so many seconds. For a signal handler.

        It takes no lock, since the program that the signal interrupts may hold it.
        """
        until = time.monotonic() + seconds
        while not self._ticked.is_set() and time.monotonic() < until:
            time.sleep(0.01)

    def postpone(self, call: Callable[[], None]) -> bool:
        """Make a call as soon as the clock has ended, in order. Returns False if it has ended already."""
        if threading.current_thread() is self._thread:
            return False
        with self._postponing:
            if self._ticked.is_set():
                return False
            self._postponed.append(call)
            return True

    def check(self) -> None:
        """Raise the error of the exchange, if it has failed."""
        if self._error is not None:
            raise self._error

    def _wait_for(self, event: threading.Event) -> None:
        event.wait()
        self.check()

    def _run(self) -> None:
        try:
            self._end_clock()
            self._read()
        except BaseException as error:
            self._error = error
        finally:
            self.captured.set()
            self._ticked.set()
            self._done.set()
            del self._send, self._read  # with the copies of the state

    def _end_clock(self) -> None:
        self._send(self.captured.set)
        self._job._end_clock()
        if self._job._now().generation != self.before.generation:
            raise RolledBack("the job was rolled back; exit, and start this program again")
        with self._postponing:
            for call in self._postponed:
                call()
            self._ticked.set()
