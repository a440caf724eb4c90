"""SIGTERM in an island: all ranks save the same step, and rank 0 writes one draft of it.

Ranks may differ by a step when SIGTERM comes, and one that waits in a collective runs no code. So the threads of
``Notice`` agree on the last step that any rank has begun. The others make that step as well: its collectives have
ended, since a rank that has begun to change its weights has all gradients of the step. docs/design/islands.md.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from . import _notice, _state
from ._island import Link
from ._notice import Notice
from .errors import PerdureError

Position = tuple[int, int]  # outer steps and inner steps


class IslandNotice(Notice):
    """Writes the last step's draft of all ranks of an island on SIGTERM to one of them.

    Args:
        links: The connections between the threads: to each follower, or to rank 0.
        leads: Whether this is rank 0.
        position: Returns how many outer and inner steps the main thread has made.
        encode: Returns the rank's part of a draft.
        write: Writes a draft on rank 0, with the parts of the followers.
        more: As for ``Notice``.
    """

    def __init__(
        self,
        weights: Callable[[], Sequence[torch.Tensor]],
        buffers: Callable[[], Sequence[torch.Tensor]],
        write: Callable[[Any, Sequence[torch.Tensor], list[_state.Later]], None],
        *,
        links: list[Link],
        leads: bool,
        position: Callable[[], Position],
        encode: Callable[[Any, Sequence[torch.Tensor]], _state.Encoded],
        **more: Any,
    ) -> None:
        self._links, self._leads, self._position, self._encode = links, leads, position, encode
        self._write_all = write
        self._at = position()  # the main thread's, at the end of its last step
        self._stop: Position | None = None  # the main thread must not go beyond it
        super().__init__(weights, buffers, lambda *_: None, **more)

    def _over(self) -> None:
        self._at = self._position()
        super()._over()

    def _must_stop(self) -> bool:
        return self._stop is not None and self._at >= self._stop

    def _run(self, prepare: Callable[[], None]) -> None:
        prepare()
        poll = select.poll()
        links = {link.fileno(): link for link in self._links}
        for file in (self._reads.fileno(), *links):
            poll.register(file, select.POLLIN)
        while True:
            for file, _ in poll.poll():
                if file == self._reads.fileno():
                    numbers = self._reads.recv(512)
                    if not numbers:
                        self._reads.close()
                        return
                    self._forward(numbers)
                    if signal.SIGTERM not in numbers or self._passes:
                        continue
                    self._seen.set()
                    if not self._leads:
                        self._links[0].send({"notice": True})
                        continue
                else:
                    try:
                        links[file].receive()
                    except PerdureError:  # the rank has ended, and soon so will this one
                        poll.unregister(file)
                        continue
                self._done.clear()
                self._seen.set()
                self._end()

    def _end(self) -> None:
        try:
            if self._leads:
                self._lead()
            else:
                self._follow()
        except Exception as error:  # the process must end in any case
            _notice._say(str(error))
        self._late, self._stop = False, None
        self._finish(True)

    def _lead(self) -> None:
        """Let all ranks stop at the same step, and write its draft."""
        try:
            for link in self._links:
                link.send({"halt": True})
            halts = [self._halt(), *(_parts(self._next(link, "halted")) for link in self._links)]
            at = max(position for position, _ in halts)
            kept = all(has for position, has in halts if position == at)
            target = at if kept else (at[0], at[1] + 1)
            for link in self._links:
                link.send({"target": target})
            own = self._reach(target)
            sizes = [self._next(link, "size") for link in self._links]
            if (target[1] and own is None) or min(sizes, default=0) < 0:
                raise PerdureError("the ranks of this island did not reach the same step in time")
            if target[1] and own is not None:
                parts = [_state.Later(size, link.part) for size, link in zip(sizes, self._links, strict=True)]
                self._write_all(own[0], own[1], parts)
        finally:
            for link in self._links:
                link.send({"done": True})

    def _follow(self) -> None:
        """Stop at the step that rank 0 names, and hand over this rank's part of the draft."""
        link = self._links[0]
        link.send({"halted": self._halt()})
        target = tuple(self._next(link, "target"))
        own = self._reach(target)
        encoded = None if own is None else self._encode(own[0], own[1])
        link.send({"size": encoded.size if encoded is not None else -1 if target[1] else 0})
        while "done" not in (said := link.receive()[0]):
            if "read" in said and encoded is not None:
                start, end = said["read"]
                room = np.empty(end - start, np.uint8)
                encoded.read(start, room)
                link.send({}, room.data)

    def _next(self, link: Link, name: str) -> Any:
        """Return the next value of a name that the peer sends, after notices of SIGTERM that it may also have sent.

        Raises:
            PerdureError: The peer has ended.
        """
        while name not in (said := link.receive()[0]):
            if "done" in said:
                raise PerdureError("rank 0 of this island has given up")
        return said[name]

    def _halt(self) -> tuple[Position, bool]:
        """Keep the main thread from its next step. Return its position, and whether its last step is kept."""
        if not self._lock.acquire(timeout=_notice._AMID):
            raise PerdureError("a step did not end in time")
        self._stop = self._at
        has = self._kept is not None or not self._wanted
        self._lock.release()
        return self._at, has

    def _reach(self, target: Position) -> tuple[Any, Sequence[torch.Tensor]] | None:
        """Let the main thread run to a position. Return the state of that step, or None."""
        end = time.monotonic() + _notice._AMID
        self._stop, self._late = target, True
        while self._at < target and time.monotonic() < end:
            self._news.clear()
            if self._at < target:
                self._news.wait(0.1)
        if self._at != target or not self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            return None
        kept = self._kept
        self._lock.release()  # the main thread stops before its next change of the weights
        if kept is None or not torch.equal(kept[2], self._sum()):
            return None
        return kept[0], kept[1]

    def close(self) -> None:
        """Restore the previous SIGTERM handler."""
        super().close()
        for link in self._links:
            link.close()


def _parts(halt: Any) -> tuple[Position, bool]:
    position, has = halt
    return (int(position[0]), int(position[1])), bool(has)
