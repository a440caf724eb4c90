"""Writes a draft of the last step on SIGTERM between two outer steps of DiLoCo, before the process ends.

Processes receive SIGTERM when their machine is preempted or their host ends. The program may be in an evaluation that
takes longer than the notice. So everything that a draft needs, except weights and optimizers, is copied after each
step, within the share of time that drafts may take. The SIGTERM handler writes the copy with the current weights and
optimizers, and then runs the previous handler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from . import _draft

#: Seconds to wait for the end of a step that SIGTERM interrupts.
_AMID = 5.0


class Notice:
    """Writes the last step's draft on SIGTERM. If it is not created in the main thread, it writes no drafts.

    Only the main thread may call its methods.

    Args:
        weights: The parameters. No draft is written if they differ at SIGTERM from their values after the step: an
            evaluation may have replaced them.
        buffers: Returns the buffers, which the model changes when it runs. They are copied.
        write: Writes a draft from the kept state and the copied buffers.
        linger: Called on SIGTERM before that.
        keeps: Whether drafts are written. Otherwise only linger is called.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        buffers: Callable[[], Sequence[torch.Tensor]],
        write: Callable[[Any, Sequence[torch.Tensor]], None],
        linger: Callable[[], None] = lambda: None,
        keeps: bool = True,
    ) -> None:
        self._weights, self._buffers, self._write, self._linger = list(weights), buffers, write, linger
        self._keeps = keeps
        self._kept: tuple[Any, list[torch.Tensor], torch.Tensor] | None = None
        self._amid = False  # whether a step is in progress, so that no complete state exists
        self._late = False  # whether SIGTERM arrived during the step
        self._cost, self._last = 0.0, 0.0  # seconds that the last call of keep took, and its end
        self._before: Any = None
        self._on = False
        self._process = os.getpid()
        self._again: threading.Timer | None = None
        with contextlib.suppress(ValueError):  # this is not the main thread
            self._before = signal.signal(signal.SIGTERM, self._told)
            self._on = True

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
        self._over()

    def step(self) -> None:
        """Note that a step begins, which changes weights and optimizers."""
        self._kept, self._amid = None, self._on

    def drop(self) -> None:
        """Discard the kept state: the step was sent, or the program is about to change state that a draft lacks."""
        self._kept = None
        self._over()

    def close(self) -> None:
        """Restore the previous SIGTERM handler."""
        self.drop()
        if self._on and signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self._before)
        self._on = False

    def _over(self) -> None:
        self._amid = False
        if self._late:
            self._told(signal.SIGTERM, None)

    def _told(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._process  # a forked child inherits this handler but must not write a draft
        if ours and self._amid and not self._late:
            self._late = True
            self._again = threading.Timer(_AMID, os.kill, (os.getpid(), number))  # the step may never end
            self._again.daemon = True
            self._again.start()
            return
        if ours and self._again is not None:  # the program's own handler may treat a second SIGTERM differently
            self._again.cancel()
            self._again = None
        self._amid = self._late = False
        if ours:
            self._linger()
        kept, self._kept = self._kept, None
        if ours and kept is not None:
            state, buffers, total = kept
            try:
                if torch.equal(total, self._sum()):
                    self._write(state, buffers)
                else:
                    print("perdure: SIGTERM: no draft written: the weights were replaced temporarily", file=sys.stderr)
            except Exception as error:  # the process must end in any case
                print(f"perdure: SIGTERM: no draft written: {error}", file=sys.stderr)
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _sum(self) -> torch.Tensor:
        """Return the norms of all weights, which identify them."""
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(w.detach(), dtype=torch.float32) for w in self._weights]
            return torch.stack([norm.to(norms[0].device) for norm in norms])  # asynchronous on a GPU
