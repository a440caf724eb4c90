"""Update rules: what an update does to a row. Their formulas are in the table of docs/TABLES.md."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What all rules of gradients may have.

    decay: the weight decay λ: λ·row is added to the gradient. Adam's is decoupled: row −= rate · λ · row, beside it.
    clip_value, clip_norm: bounds of each value of a row's gradient, and of its Euclidean norm; 0: none.
    schedule: ``const``, ``sqrt`` or ``step``: then the rate is multiplied by ``factor`` every ``every`` clocks.
    """

    kind: ClassVar[str] = ""

    decay: float = 0.0
    clip_value: float = 0.0
    clip_norm: float = 0.0
    schedule: str = ""
    every: int = 0
    factor: float = 0.0

    #: Settings that may not be 0, and what to take in place of a rule that has one.
    _above_0: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for name, instead in self._above_0.items():
            if not getattr(self, name) > 0:
                raise UsageError(f"{type(self).__name__}: {name} is {getattr(self, name)}; {instead}")

    def spec(self) -> dict[str, Any]:
        """The rule as the agent takes it: what is 0 is left out."""
        return {"kind": self.kind} | {f.name: v for f in fields(self) if (v := getattr(self, f.name))}


@dataclass(frozen=True)
class Add(Rule):
    """row += delta: for counts, and sums."""

    kind: ClassVar[str] = "add"


@dataclass(frozen=True)
class Set(Rule):
    """row = delta: for rows that one slot owns."""

    kind: ClassVar[str] = "set"


@dataclass(frozen=True)
class SGD(Rule):
    """row −= rate · gradient."""

    kind: ClassVar[str] = "sgd"
    rate: float


@dataclass(frozen=True)
class Momentum(Rule):
    """SGD with momentum, as ``torch.optim.SGD(momentum=…)``."""

    kind: ClassVar[str] = "momentum"
    _above_0: ClassVar[dict[str, str]] = {"momentum": "without momentum it is perdure.SGD"}
    rate: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Nesterov(Rule):
    """SGD with Nesterov's momentum: DiLoCo's outer step."""

    kind: ClassVar[str] = "nesterov"
    _above_0: ClassVar[dict[str, str]] = {"momentum": "without momentum it is perdure.SGD"}
    rate: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad, with an accumulator for each value."""

    kind: ClassVar[str] = "adagrad"
    _above_0: ClassVar[dict[str, str]] = {"epsilon": "take a small one, such as 1e-10"}
    rate: float
    epsilon: float = 1e-10


@dataclass(frozen=True)
class RowwiseAdagrad(Rule):
    """Adagrad, with one accumulator for each row."""

    kind: ClassVar[str] = "rowwise-adagrad"
    _above_0: ClassVar[dict[str, str]] = {"epsilon": "take a small one, such as 1e-10"}
    rate: float
    epsilon: float = 1e-10


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, whose t counts the runs of the rule on the row's table."""

    kind: ClassVar[str] = "adam"
    _above_0: ClassVar[dict[str, str]] = {
        "beta1": "servers need one above 0; take a small one, such as 1e-6",
        "beta2": "servers need one above 0",
        "epsilon": "take a small one, such as 1e-8",
    }
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class FTRL(Rule):
    """FTRL-Proximal, for sparse models."""

    kind: ClassVar[str] = "ftrl"
    _above_0: ClassVar[dict[str, str]] = {"beta": "servers need one above 0"}
    rate: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
