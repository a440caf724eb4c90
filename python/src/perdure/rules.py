"""Update rules: how servers apply an update to a row. docs/TABLES.md lists their formulas."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Base class of all update rules, with the settings that gradient rules share.

    Attributes:
        decay: The weight decay λ: λ·row is added to the gradient. Adam's is decoupled: row −= rate · λ · row is
            applied separately.
        clip_value: The bound of each value of a row's gradient; 0 means no bound.
        clip_norm: The bound of the Euclidean norm of a row's gradient; 0 means no bound.
        schedule: The rate's schedule: ``const``, ``sqrt`` or ``step``.
        every: The number of clocks between two steps of the schedule ``step``.
        factor: The factor that multiplies the rate at each step of the schedule ``step``.
    """

    kind: ClassVar[str] = ""

    decay: float = 0.0
    clip_value: float = 0.0
    clip_norm: float = 0.0
    schedule: str = ""
    every: int = 0
    factor: float = 0.0

    #: Settings that must be above 0, and the advice that the error message gives for each.
    _above_0: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for name, instead in self._above_0.items():
            if not getattr(self, name) > 0:
                value = getattr(self, name)
                raise UsageError(f"{type(self).__name__}: {name} is {value}, but must be above 0; {instead}")

    def spec(self) -> dict[str, Any]:
        """Return the rule in the form that the agent reads, without settings that are 0."""
        return {"kind": self.kind} | {f.name: v for f in fields(self) if (v := getattr(self, f.name))}


@dataclass(frozen=True)
class Add(Rule):
    """row += delta, for counts and sums."""

    kind: ClassVar[str] = "add"


@dataclass(frozen=True)
class Set(Rule):
    """row = delta, for rows that only one slot writes."""

    kind: ClassVar[str] = "set"


@dataclass(frozen=True)
class SGD(Rule):
    """row −= rate · gradient."""

    kind: ClassVar[str] = "sgd"
    rate: float


@dataclass(frozen=True)
class Momentum(Rule):
    """SGD with momentum, like ``torch.optim.SGD(momentum=…)``."""

    kind: ClassVar[str] = "momentum"
    _above_0: ClassVar[dict[str, str]] = {"momentum": "without momentum use perdure.SGD"}
    rate: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Nesterov(Rule):
    """SGD with Nesterov momentum, which DiLoCo uses for its outer step."""

    kind: ClassVar[str] = "nesterov"
    _above_0: ClassVar[dict[str, str]] = {"momentum": "without momentum use perdure.SGD"}
    rate: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad with one accumulator per value."""

    kind: ClassVar[str] = "adagrad"
    _above_0: ClassVar[dict[str, str]] = {"epsilon": "use a small value, such as 1e-10"}
    rate: float
    epsilon: float = 1e-10


@dataclass(frozen=True)
class RowwiseAdagrad(Rule):
    """Adagrad with one accumulator per row."""

    kind: ClassVar[str] = "rowwise-adagrad"
    _above_0: ClassVar[dict[str, str]] = {"epsilon": "use a small value, such as 1e-10"}
    rate: float
    epsilon: float = 1e-10


@dataclass(frozen=True)
class Adam(Rule):
    """Adam. Its step count t is the number of times the rule has run on the row's table."""

    kind: ClassVar[str] = "adam"
    _above_0: ClassVar[dict[str, str]] = {
        "beta1": "use a small value, such as 1e-6",
        "beta2": "the default is 0.999",
        "epsilon": "use a small value, such as 1e-8",
    }
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class FTRL(Rule):
    """FTRL-Proximal, for sparse models."""

    kind: ClassVar[str] = "ftrl"
    _above_0: ClassVar[dict[str, str]] = {"beta": "the default is 1.0"}
    rate: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
