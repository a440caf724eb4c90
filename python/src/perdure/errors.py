"""Exceptions that calls raise. Each corresponds to an error code in the agent's replies."""

from __future__ import annotations


class PerdureError(Exception):
    """Base class of all Perdure errors."""


class UsageError(PerdureError, ValueError):
    """The call cannot succeed with these arguments or in this state; the message says what to change."""


class RolledBack(PerdureError):
    """The job was rolled back to an earlier clock. Call ``Job.clock`` and continue from the clock it returns."""


#: The exit code of a program that RolledBack has ended. The supervisor then starts it again, without a failure counted.
EXIT_ROLLED_BACK = 6


class Fenced(PerdureError):
    """Another process holds this process's slot now. End this process."""


class Stopped(PerdureError):
    """The job has ended."""


class _Left(RolledBack):
    """This process has started in a slot that has done its last clock. Its program ends like after a rollback."""


class Done(Stopped):
    """The job's work is complete, or was complete before this process joined."""


class Lost(PerdureError):
    """The job is lost: none of its processes has been reachable for too long. End this process."""


class Refused(PerdureError):
    """The job or the agent does not admit this process."""


class NonFinite(PerdureError, ValueError):
    """An update contains NaN or Inf. No part of it was applied."""


class BoundBroken(PerdureError):
    """A row was older than its table's consistency model allows. This is a bug: end the process, and report it."""


class Unkept(PerdureError):
    """A shard has lost updates, and no copy of them exists. This is a bug: end the process, and report it."""


class AgentDied(PerdureError):
    """This program's agent has died, so this process can no longer use the job. End it."""


class Forked(PerdureError):
    """A forked process used the job that its parent had joined. Join in the process that trains."""


class _Cancelled(PerdureError):
    """A call was cancelled because its timeout had passed or the program was interrupted."""


class _CopyWanted(PerdureError):
    """A read ended early, because another process needs a copy of this program's shared state."""


#: The exception for each error code of a reply. Code 0 means success.
BY_CODE: dict[int, type[PerdureError]] = {
    1: UsageError,
    2: RolledBack,
    3: Fenced,
    4: Stopped,
    5: Done,
    6: Lost,
    7: Refused,
    8: NonFinite,
    9: BoundBroken,
    10: Unkept,
    11: _Cancelled,
    12: PerdureError,
    13: _CopyWanted,
}
