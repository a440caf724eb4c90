"""Sends a large state to the agent in pieces, while the program continues."""

from __future__ import annotations

import threading

from . import _agent
from ._agent import Agent
from ._shared import Lot
from ._state import Encoded
from .errors import PerdureError


class Sending:
    """A state that a thread sends. The agent writes the pieces to the job's store, without a copy of the whole.

    Args:
        agent: The agent. It has been told the size.
        state: The state. It must not change before ``ended`` is set.
        room: Shared memory for a piece.
        spare: The list that gets the memory back.
    """

    def __init__(self, agent: Agent, state: Encoded, room: Lot, spare: list[Lot]) -> None:
        self.ended = threading.Event()  #: set when the state is stored or not needed
        self.failed: BaseException | None = None  #: why the state could not be read
        self._agent, self._state, self._room, self._spare = agent, state, room, spare
        # A daemon, since it must not keep a program from exiting while the store is unavailable.
        threading.Thread(target=self._run, name="perdure-state", daemon=True).start()

    def _run(self) -> None:
        try:
            at = 0
            while at < self._state.size:
                try:
                    count = self._state.read(at, self._room.bytes)
                except BaseException as error:  # for example of a GPU
                    self.failed = error
                    self._agent.call(_agent.STATE_PIECE, text=str(error).encode()[:1000])
                    return
                at = self._agent.call(_agent.STATE_PIECE, a=self._room.address, b=at, c=count).a
        except PerdureError:
            pass  # the program's own call reports it
        finally:
            self._spare.append(self._room)
            self.ended.set()
