"""SIGTERM between two outer steps of DiLoCo: a draft of the last step is written before the process ends.

A machine that is taken away, and a host that ends, send SIGTERM. The program may be in an evaluation then, which
takes longer than the notice. So all that a draft needs, except weights and optimizers, is copied after each step, as
long as that takes no more of the time than drafts may. The handler of SIGTERM writes it with the weights and optimizers
that are there, and then does what SIGTERM would have done.
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

#: Seconds that a SIGTERM during a step waits for the step's end.
_AMID = 5.0


class Notice:
    """Writes the last step's draft on SIGTERM. All methods are for the main thread; in others there is no draft.

    weights: the parameters, which must be at SIGTERM what they were after the step. An evaluation may have put others
    in their place. buffers: what runs of the model change; they are copied. write: writes a draft of what was kept, and
    these buffers.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        buffers: Callable[[], Sequence[torch.Tensor]],
        write: Callable[[Any, Sequence[torch.Tensor]], None],
    ) -> None:
        self._weights, self._buffers, self._write = list(weights), buffers, write
        self._kept: tuple[Any, list[torch.Tensor], torch.Tensor] | None = None
        self._amid = False  # a step: neither the last one's state is there, nor the next one's
        self._late = False  # SIGTERM has come during it
        self._cost, self._last = 0.0, 0.0  # seconds that keep has taken; when that was
        self._before: Any = None
        self._on = False
        self._process = os.getpid()
        self._again: threading.Timer | None = None
        with contextlib.suppress(ValueError):  # this is not the main thread
            self._before = signal.signal(signal.SIGTERM, self._told)
            self._on = True

    def affords(self) -> bool:
        """Whether keep took a small part of the time since: of a step, or of several after a slow one."""
        since = time.monotonic() - self._last
        return self._on and (self._late or self._cost <= _draft.SHARE * since)

    def keep(self, make: Callable[[], Any], spent: float = 0.0) -> None:
        """After a step: keep what a draft of it needs. make: copies all except weights, buffers and optimizers. spent:
        seconds that a part of this took before.
        """
        begun = time.monotonic()
        with torch.no_grad():
            self._kept = make(), [b.detach().clone() for b in self._buffers()], self._sum()
        self._last = time.monotonic()
        self._cost = spent + self._last - begun
        self._over()

    def step(self) -> None:
        """A step begins, which changes weights and optimizers."""
        self._kept, self._amid = None, self._on

    def drop(self) -> None:
        """There is nothing to keep: the step was sent, or what follows it changes more than a draft has."""
        self._kept = None
        self._over()

    def close(self) -> None:
        """Restore the earlier handler of SIGTERM."""
        self.drop()
        if self._on and signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self._before)
        self._on = False

    def _over(self) -> None:
        self._amid = False
        if self._late:
            self._told(signal.SIGTERM, None)

    def _told(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._process  # a process that the program forks has this handler, and no draft to write
        if ours and self._amid and not self._late:
            self._late = True
            self._again = threading.Timer(_AMID, os.kill, (os.getpid(), number))  # the step may never end
            self._again.daemon = True
            self._again.start()
            return
        if ours and self._again is not None:  # the program may handle SIGTERM itself, and a second one means more
            self._again.cancel()
            self._again = None
        self._amid = self._late = False
        kept, self._kept = self._kept, None
        if ours and kept is not None:
            state, buffers, total = kept
            try:
                if torch.equal(total, self._sum()):
                    self._write(state, buffers)
                else:
                    print("perdure: SIGTERM: no draft, other weights are in the model's place", file=sys.stderr)
            except Exception as error:  # the process is to end all the same
                print(f"perdure: SIGTERM: no draft: {error}", file=sys.stderr)
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _sum(self) -> torch.Tensor:
        """Numbers that other weights do not have: the norm of each."""
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(w.detach(), dtype=torch.float32) for w in self._weights]
            return torch.stack([norm.to(norms[0].device) for norm in norms])  # on a GPU nothing waits for it
