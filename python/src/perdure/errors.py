"""What calls raise. Each class is an error of the agent's replies, by its code."""

from __future__ import annotations


class PerdureError(Exception):
    """The base of all errors of Perdure."""


class UsageError(PerdureError, ValueError):
    """A call that can never succeed as it was made."""


class RolledBack(PerdureError):
    """The job went back to an earlier clock. Call ``Job.clock`` and go on from the clock it returns."""


class Fenced(PerdureError):
    """Another process has this one's slot: end."""


class Stopped(PerdureError):
    """The job is over."""


class Done(Stopped):
    """All of the job's work was done before this process came."""


class Lost(PerdureError):
    """No process of the job has been heard for long: it is gone, or cut off. End."""


class Refused(PerdureError):
    """The job, or the agent, does not let this process in."""


class NonFinite(PerdureError, ValueError):
    """There is NaN or Inf in an update. Nothing of it was taken."""


class BoundBroken(PerdureError):
    """A row was older than its table's consistency model allows. Something is broken: end, and tell us."""


class Unkept(PerdureError):
    """A shard lacks updates that nobody has kept. Something is broken: end, and tell us."""


class AgentDied(PerdureError):
    """The agent of this program has ended. This process can do nothing more in the job: end."""


class Forked(PerdureError):
    """A process that was forked after its parent had joined uses the parent's job. Join in the process that trains."""


class _Cancelled(PerdureError):
    """A call was cancelled, since its time was over or the program was interrupted."""


#: By the code of a reply; 0 is none of them.
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
}
