"""ServerOptimizer refuses gradients that the program changes between the backward pass and the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from launched import lives
from test_refused import refuses

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn

SAID = (
    r"the gradient of (0\.weight|0\.bias|1\.weight) has changed since backward\(\), as by clip_grad_norm_: that changes"
)


class Twice(nn.Sequential):
    """A model that uses each parameter of its first layer twice, and one parameter in some passes only."""

    def forward(self, x: Any) -> Any:
        x = self[0](self[0](x))
        return self[1](x) if x.sum() > 0 else x


def made() -> Any:
    torch.manual_seed(0)
    model = Twice(nn.Linear(3, 3), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.abs_()
    return model


def backward(model: Any, sign: float = 1.0) -> None:
    model(torch.full((2, 3), sign * 5)).sum().backward()


def divide(model: Any) -> None:
    for p in model.parameters():
        p.grad /= 2


def replace(model: Any) -> None:
    for p in model.parameters():
        p.grad = p.grad / 2


def clip(model: Any, **how: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, **how)


CHANGES: dict[str, Callable[[Any], None]] = {
    "norm": clip,
    "norm, foreach": lambda model: clip(model, foreach=True),
    "norm, one by one": lambda model: clip(model, foreach=False),
    "norm, imported": lambda model: nn.utils.clip_grad.clip_grad_norm_(list(model.parameters()), 1e9),
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1),
    "value, foreach": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=True),
    "divided": divide,
    "replaced": replace,
}


def test_changed_gradients(tmp_path: Path) -> None:
    was = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        model = made()
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        assert was == (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_)
        for change in CHANGES.values():
            for later in (False, True):  # with another backward pass after the change
                backward(model)
                change(model)
                if later:
                    backward(model)
                for _ in range(2):
                    with refuses(SAID):
                        p.step()
                p.zero_grad()
        with refuses("^clip_grad_norm_ changes this slot's own gradient"):
            p.clip_grad_norm_(1.0)
        assert job.now == 1
        backward(model)
        assert p.step() == 2
        p.finish()
        backward(model)
        clip(model)
        assert all(not p._backward_hooks for p in model.parameters())


def test_unchanged_gradients(tmp_path: Path) -> None:
    """Several backward passes, gradients that are None, discarded ones and a step without zero_grad are accepted."""

    def life(job: perdure.Job, _: int) -> None:
        model = made()
        p = perdure.ServerOptimizer(job, model, perdure.SGD(1e-3))
        steps = 0

        def step() -> None:
            nonlocal steps
            p.step()
            steps += 1

        step()  # no gradients at all
        for _ in range(3):
            backward(model)
        step()  # of accumulated gradients
        backward(model)
        step()  # without zero_grad
        model.zero_grad(set_to_none=False)
        backward(model, -1.0)  # the last layer has no part in it
        step()
        p.zero_grad()
        for to_none in (True, False):  # a batch that is discarded
            backward(model)
            clip(model)
            model.zero_grad(set_to_none=to_none)
            backward(model)
            backward(model)
            step()
        p.zero_grad()
        for of in model.parameters():  # gradients that the program has computed by itself
            of.grad = torch.ones_like(of)
        step()
        p.zero_grad()
        backward(model)
        norm = nn.utils.get_total_norm([of.grad for of in model.parameters()])  # only reads
        assert float(norm) > 0
        (model(torch.ones(2, 3)).sum() / 2).backward()
        step()
        assert job.now == steps + 1
        job.finish()

    lives(tmp_path, life, 0)


@pytest.mark.parametrize("how", ["compiled", "checkpointed", "autocast"])
def test_gradients_of_other_passes(tmp_path: Path, how: str) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        model = made()
        runs = torch.compile(model, backend="aot_eager") if how == "compiled" else model
        p = perdure.ServerOptimizer(job, runs, perdure.SGD(1e-3))
        for step in range(4):
            context = torch.autocast("cpu", torch.bfloat16) if how == "autocast" else contextlib.nullcontext()
            with context:
                x = torch.ones(2, 3, requires_grad=True)
                if how == "checkpointed":
                    out = torch.utils.checkpoint.checkpoint(runs, x, use_reentrant=step % 2 == 0)
                else:
                    out = runs(x)
                out.float().sum().backward()
            if step == 3:
                clip(model)
                with refuses(SAID):
                    p.step()
                p.zero_grad()
            else:
                p.step()
                p.zero_grad()
