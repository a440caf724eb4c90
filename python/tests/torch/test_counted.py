"""Programs are rejected if they count in a variable, which restarts at 0 in a replacement process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn
loaders = pytest.importorskip("torchdata.stateful_dataloader")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[perdure.Job]:
    """A job without a planned last clock, whose only worker is this process."""
    with perdure.start(servers=1, out=tmp_path / "run", args=SMALL) as of:
        yield of


class Counter:
    """A program's own counter of steps."""

    n = 0

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_second_pass(endless: perdure.Job, how: str, workers: int) -> None:
    model = nn.Linear(4, 1)
    loader = loaders.StatefulDataLoader(
        torch.randn(8, 4), batch_size=2, num_workers=workers, persistent_workers=workers > 0
    )
    inner = torch.optim.SGD(model.parameters(), 0.01)
    if how == "diloco":
        p: Any = perdure.DiLoCo(endless, model, inner, sync_every=3, state=[loader])
        step = inner.step
    else:
        p = perdure.ServerOptimizer(endless, model, perdure.SGD(0.01), state=[loader])
        step = p.step
    batches = 0

    def train() -> None:
        nonlocal batches
        for x in loader:
            model(x).square().mean().backward()
            batches += 1
            step()

    with pytest.raises(perdure.UsageError, match=r"state\[0\].* second pass .*job\.epochs"), p:
        train()
        assert batches == 4
        train()
    assert batches == 5


def run(job: perdure.Job, how: str) -> None:
    """Make nine steps of DiLoCo. ``how`` determines how the learning rate is set."""
    model, counter = nn.Linear(4, 1), Counter()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
    state = {"counter": [counter], "state": [scheduler], "early": [scheduler]}.get(how, [])
    schedulers = [scheduler] if how == "listed" else []
    with perdure.DiLoCo(job, model, inner, sync_every=3, state=state, schedulers=schedulers):
        for i in range(9):
            if how in ("variable", "counter") or (how == "outer" and i % 3 == 0):
                inner.param_groups[0]["lr"] = 0.1 / (job.now + i)
            inner.zero_grad()
            model(torch.ones(1, 4)).square().mean().backward()
            if how == "early":
                scheduler.step()
            counter.n += 1
            inner.step()
            if how in ("forgotten", "state"):
                scheduler.step()


@pytest.mark.filterwarnings("ignore:Detected call of")  # a scheduler steps before the optimizer
@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ("variable", "counts steps"),  # as in nanoGPT
        ("forgotten", "counts steps"),  # a scheduler that is not in schedulers=
        ("state", r"ExponentialLR in state= is stepped after .*schedulers="),
        ("early", None),
        ("listed", None),
        ("counter", None),
        ("outer", None),  # by the job's clock, at outer steps
    ],
)
def test_rates(endless: perdure.Job, how: str, refused: str | None) -> None:
    with pytest.raises(perdure.UsageError, match=refused) if refused else contextlib.nullcontext():
        run(endless, how)
