"""Perdure keeps distributed training running when any of its processes dies.

Example:
    >>> import perdure
    >>> job = perdure.start(servers=2)
    >>> table = job.table("w", rows=1000, dim=16, rule=perdure.Adam(1e-3))
"""

import importlib.util
from typing import TYPE_CHECKING

from ._track import Tracked, track
from .errors import (
    AgentDied,
    BoundBroken,
    Done,
    Fenced,
    Forked,
    Lost,
    NonFinite,
    PerdureError,
    Refused,
    RolledBack,
    Stopped,
    Unkept,
    UsageError,
)
from .job import Job, Saved, Share, Table, join, start
from .rules import FTRL, SGD, Adagrad, Adam, Add, Momentum, Nesterov, RowwiseAdagrad, Rule, Set
from .run import Run
from .sampler import Sampler

#: The classes that need PyTorch.
_TORCH = ("Count", "DataParallel", "DiLoCo", "ServerOptimizer")

if TYPE_CHECKING:
    from ._parallel import DataParallel as DataParallel
    from .torch import Count as Count
    from .torch import DiLoCo as DiLoCo
    from .torch import ServerOptimizer as ServerOptimizer
else:

    def __getattr__(name: str) -> object:
        """Import the classes that need PyTorch on first use."""
        if name in _TORCH:
            from . import _parallel, torch

            return getattr(_parallel if name == "DataParallel" else torch, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        there = importlib.util.find_spec("torch") is not None
        return sorted({*globals(), *(_TORCH if there else ())})


#: Without the classes that need PyTorch, so that ``from perdure import *`` works when it is not installed.
__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Add",
    "AgentDied",
    "BoundBroken",
    "Done",
    "Fenced",
    "Forked",
    "Job",
    "Lost",
    "Momentum",
    "Nesterov",
    "NonFinite",
    "PerdureError",
    "Refused",
    "RolledBack",
    "RowwiseAdagrad",
    "Rule",
    "Run",
    "Sampler",
    "Saved",
    "Set",
    "Share",
    "Stopped",
    "Table",
    "Tracked",
    "Unkept",
    "UsageError",
    "join",
    "start",
    "track",
]
