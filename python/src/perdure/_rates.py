"""Learning rates of an optimizer that the servers run, and the schedulers that change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from ._inner import refuse_schedulers
from .errors import UsageError
from .rules import SGD, Rule

_CONSTANT = (
    "servers run {} at a constant rate; schedulers work with torch.optim.SGD without momentum: for other rules choose "
    'a schedule of the servers, such as perdure.Adam(1e-3, schedule="sqrt"), or DataParallel or DiLoCo under bsp'
)


class Rates:
    """Scales gradients by the rate of a scheduler, since the rates of the servers' rules stay the same.

    Under SGD without momentum that is the same as a change of the rate, also if each slot has its own.

    Args:
        optimizer: The optimizer that the servers run, or None for a rule.
        schedulers: Its schedulers, which ``advance`` steps.
    """

    def __init__(self, optimizer: Optimizer | None, schedulers: Sequence[Any]) -> None:
        self._optimizer, self._schedulers = optimizer, schedulers
        refuse_schedulers(schedulers)
        if schedulers and optimizer is None:
            raise UsageError("schedulers= needs an optimizer of torch.optim: pass one instead of a rule")
        if any(of.optimizer is not optimizer for of in schedulers):
            raise UsageError("a scheduler in schedulers= was created for another optimizer than the one passed")
        self._refuse_unlisted()
        if schedulers:
            optimizer._opt_called = True  # type: ignore[union-attr]  # otherwise a scheduler warns
        self._last = self._now()

    def base(self, rules: Sequence[Rule]) -> list[Rule]:
        """Return the rules with the rates that the schedulers multiply, as which servers run them."""
        if not self._schedulers:
            return list(rules)
        assert self._optimizer is not None
        for rule in rules:
            if not isinstance(rule, SGD):
                raise UsageError(_CONSTANT.format(type(rule).__name__))
        rates = [float(group["initial_lr"]) for group in self._optimizer.param_groups]
        if not all(rates):
            raise UsageError("a scheduler cannot change a rate of 0: create the optimizer with a rate above 0")
        return [dataclasses.replace(of, rate=rate) for of, rate in zip(rules, rates, strict=True)]  # type: ignore[call-arg]

    def refuse_set(self) -> None:
        """Raise UsageError if the program has changed a rate since the last step, or has a scheduler of its own."""
        self._refuse_unlisted()
        if self._last != self._now():
            raise UsageError(
                "the program has changed the optimizer's rate, but the servers keep the first one: list a scheduler in "
                "schedulers=, such as torch.optim.lr_scheduler.LambdaLR, and let ServerOptimizer call its step; "
                + _CONSTANT.format("the optimizer")
            )

    def advance(self, rules: Sequence[Rule]) -> list[float]:
        """Step the schedulers, and return the factor of each group's gradient in the step before."""
        rates = self._now()
        for of in self._schedulers:
            of.step()
        self._last = self._now()
        return [rate / of.rate for rate, of in zip(rates, rules, strict=True)]  # type: ignore[attr-defined]

    def loaded(self) -> None:
        """Restore the rates after the schedulers have loaded their states, which have them."""
        if self._schedulers:
            assert self._optimizer is not None
            for group, rate in zip(self._optimizer.param_groups, self._schedulers[-1].get_last_lr(), strict=True):
                group["lr"] = rate
        self._last = self._now()

    def _now(self) -> list[float]:
        return [] if self._optimizer is None else [float(group["lr"]) for group in self._optimizer.param_groups]

    def _refuse_unlisted(self) -> None:
        if self._optimizer is None or self._schedulers:
            return
        step = self._optimizer.step  # a scheduler replaces it when it is created; the second name is that of torch 2.3
        if not (hasattr(step, "_wrapped_by_lr_sched") or hasattr(step, "_with_counter")):
            return
        what = _CONSTANT.format(type(self._optimizer).__name__)
        raise UsageError(
            "the optimizer has a scheduler that is not in schedulers=: list it, and let ServerOptimizer call its step "
            f"({what})"
        )
