"""The inner optimizers of DiLoCo: several of them, compiled and wrapped ones, and unsupported ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from launched import Death, hash_of, lives

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn
SGD = torch.optim.SGD


def refuses(match: str) -> Any:
    return pytest.raises(perdure.UsageError, match=match)


class Steps:
    """Counts steps."""

    def __init__(self) -> None:
        self.of = 0

    def state_dict(self) -> dict[str, Any]:
        return {"of": self.of}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.of = state["of"]


def backward(model: Any, step: int) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()


@pytest.mark.parametrize("drafts", [True, False])
def test_two_optimizers_go_on(tmp_path: Path, drafts: bool) -> None:
    def life(job: perdure.Job, number: int) -> Any:
        torch.manual_seed(0)
        model, steps = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), Steps()
        muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], 1e-2)
        adamw = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], 1e-2)
        clocks = []
        with perdure.DiLoCo(job, model, [muon, adamw], sync_every=4, state=[steps]):
            while steps.of < 14:
                model.zero_grad()
                backward(model, steps.of)
                steps.of += 1
                muon.step()
                now = job.now
                adamw.step()
                if job.now > now:
                    clocks.append(steps.of)
                if number < deaths and steps.of == (6, 8)[number]:
                    raise Death
        return hash_of(model), float(adamw.state[model[0].bias]["step"]), clocks[-1]

    found = []
    for deaths in (0, 2):
        found.append(lives(tmp_path / str(deaths), life, deaths, drafts=drafts))
    assert found[0] == found[1]
    assert found[0][1:] == (14, 12)


def test_parameters(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    first, last = list(model[0].parameters()), list(model[1].parameters())
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        for inner, said in (
            (SGD(last, 0.1), r"the inner optimizer lacks 0.weight, 0.bias, which the model trains: .*inner=\[muon"),
            ([SGD(first, 0.1), SGD([*first, *last], 0.1)], "0.weight is in two inner optimizers"),
            ([], "inner is an empty list"),
            (object.__new__(Wrapper), "inner is not an optimizer of torch.optim"),
        ):
            with refuses(said):
                perdure.DiLoCo(job, model, inner)
        frozen = nn.Linear(2, 2).requires_grad_(False)
        with refuses(r"parameters that the model does not train \(0.weight, 0.bias are frozen\)"):
            perdure.ServerOptimizer(job, nn.Sequential(frozen, nn.Linear(2, 1)), SGD(frozen.parameters(), 0.1))
        assert job.now == 0


def test_order(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    a, b = SGD(model[0].parameters(), 0.1), torch.optim.AdamW(model[1].parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        perdure.DiLoCo(job, model, [b, a])
        backward(model, 0)
        with refuses("SGD stepped before AdamW, number 0"):
            a.step()


def test_a_scaler_may_skip_a_step(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    a, b = SGD(model[0].parameters(), 0.1), SGD(model[1].parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    with perdure.start(out=tmp_path / "run", args=SMALL) as job, perdure.DiLoCo(job, model, [a, b], sync_every=1):
        for step in range(2):
            model.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            if step == 0:
                model[0].bias.grad.fill_(float("inf"))
            scaler.step(a)
            scaler.step(b)
            scaler.update()
        assert job.now == 3


class Wrapper(torch.optim.Optimizer):
    """A wrapper around an optimizer without hooks, like accelerate's."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self) -> None:  # type: ignore[override]
        self.optimizer.step()


@pytest.mark.parametrize("how", ["plain", "compiled", "compiled whole", "compiled before", "wrapped"])
def test_outer_steps(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner = SGD(model.parameters(), 0.1)
    step: Callable[[], Any] = inner.step
    if how == "compiled before":
        step = torch.compile(inner.step, backend="eager")
        backward(model, 0)
        step()
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with perdure.DiLoCo(job, model, Wrapper(inner) if how == "wrapped" else inner, sync_every=3):
            if how == "compiled":
                step = torch.compile(inner.step, backend="eager")
            elif how == "compiled whole":
                step = torch.compile(lambda: inner.step(), backend="eager")
            clocks = []
            for number in range(6):
                model.zero_grad()
                backward(model, number)
                step()
                clocks.append(job.now)
        assert clocks == [1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("how", ["another", "in backward", "at the end"])
def test_steps_of_others(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner, other = SGD(model.parameters(), 0.1), SGD(model.parameters(), 0.1)
    if how == "in backward":
        from torch.distributed.optim import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(SGD, model.parameters(), {"lr": 0.1})
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        d = perdure.DiLoCo(job, model, inner, sync_every=3)
        if how != "in backward":
            backward(model, 0)
            other.step()
        with refuses("SGD, the inner optimizer, has made no step"):
            if how == "at the end":
                d.finish()
            for step in range(1, 32):
                backward(model, step)


class SAM(SGD):
    """Sharpness-aware minimisation, which runs the model a second time within a step, with other weights."""

    def first_step(self) -> None:
        with torch.no_grad():
            self.old = [p.detach().clone() for group in self.param_groups for p in group["params"]]
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    def restore(self) -> None:
        with torch.no_grad():
            for p, old in zip((p for group in self.param_groups for p in group["params"]), self.old, strict=True):
                p.copy_(old)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            self.first_step()
            with torch.enable_grad():
                closure()
            self.restore()
        super().step()


@pytest.mark.parametrize("how", ["lbfgs", "sam", "sam by hand"])
def test_models_that_run_within_a_step(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner: Any = torch.optim.LBFGS(model.parameters(), max_iter=4) if how == "lbfgs" else SAM(model.parameters(), 0.1)
    SGD(model.parameters(), 0.1)  # after the first instance, SGD.step calls hooks, also for subclasses

    def closure() -> Any:
        model.zero_grad()
        backward(model, 0)
        return torch.zeros(())

    with perdure.start(out=tmp_path / "run", args=SMALL) as job, perdure.DiLoCo(job, model, inner, sync_every=2):
        for _ in range(4):
            closure()
            if how == "sam by hand":
                inner.first_step()
                closure()
                inner.restore()
            inner.step(None if how == "sam by hand" else closure)
        assert job.now == 3


@pytest.mark.parametrize("how", ["diloco", "parallel", "parallel later", "another"])
def test_weights_that_the_program_changes(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner = SGD(model.parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        trainer: Any
        if how == "diloco":
            trainer = perdure.DiLoCo(job, model, inner)
        else:
            trainer = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        if how == "parallel later":
            backward(model, 0)
            trainer.step()
        if how == "another":
            backward(model, 0)
            inner.step()
        else:
            model.load_state_dict({name: of + 1 for name, of in model.state_dict().items()})
        with refuses("weight has changed"):
            backward(model, 1)
            if how != "diloco":
                trainer.step()


def test_averages_in_the_place_of_weights(tmp_path: Path) -> None:
    """An evaluation may replace the weights if it restores them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with perdure.ServerOptimizer(job, model, perdure.SGD(0.1)) as trainer:
            for step in range(3):
                backward(model, step)
                trainer.step()
                trainer.zero_grad()
                were = {name: of.clone() for name, of in model.state_dict().items()}
                model.load_state_dict({name: of + 1 for name, of in were.items()})
                model.load_state_dict(were)
        assert job.now == 4


class AdamWScheduleFree(SGD):
    def train(self) -> None: ...

    def eval(self) -> None: ...


class Lookahead(SGD): ...


class LookaheadWrapper(Wrapper): ...


def test_averaging_optimizers(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        for make in (AdamWScheduleFree, Lookahead, lambda *of: LookaheadWrapper(SGD(*of))):
            inner = make(model.parameters(), 0.1)
            with refuses(f"{type(inner).__name__} keeps a copy of the weights in its state"):
                perdure.DiLoCo(job, model, inner)
        inner = SGD(model.parameters(), 0.1)
        with refuses("ReduceLROnPlateau"):
            perdure.DiLoCo(job, model, inner, schedulers=[torch.optim.lr_scheduler.ReduceLROnPlateau(inner)])
        assert job.now == 0


@pytest.mark.parametrize("how", ["all", "later", "parallel"])
def test_unfreeze(tmp_path: Path, how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    inner = SGD((model if how == "all" else model[1]).parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        step: Callable[[], Any]
        if how == "parallel":
            step = perdure.ServerOptimizer(job, model, perdure.SGD(0.1)).step
        else:
            perdure.DiLoCo(job, model, inner, sync_every=100)
            step = inner.step
        backward(model, 0)
        step()
        model[0].requires_grad_(True)
        if how == "later":
            inner.add_param_group({"params": list(model[0].parameters())})
        backward(model, 1)
        with refuses("0.weight was frozen"):
            step()


def test_finish_lets_go(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    inner = SGD(model.parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        d = perdure.DiLoCo(job, model, inner, sync_every=1)
        d.finish()
        backward(model, 0)
        inner.step()  # the training is over, so the program may change the model
        assert not inner._optimizer_step_post_hooks


def test_steps_after_finish(tmp_path: Path) -> None:
    """Steps after finish are refused until the block ends, since only this process would have their result."""
    model = nn.Linear(4, 1)
    inner = SGD(model.parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with perdure.DiLoCo(job, model, inner, sync_every=2) as d:
            for step in range(2):
                backward(model, step)
                inner.step()
            d.finish()
            trained = hash_of(model)
            with refuses("ended the training"):
                inner.step()
            assert hash_of(model) == trained
        inner.step()
        assert hash_of(model) != trained
