"""Schedulers of ServerOptimizer, and objects that a program uses but does not pass to it."""

from __future__ import annotations

import os
import pickle
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster
from launched import Death, lives

import perdure
from perdure import UsageError

torch = pytest.importorskip("torch")
schedules = torch.optim.lr_scheduler

ASYNC = ("--consistency=asp", "--atomic-clocks", "--suspend-after=0s", "--recovery=stateless")
STEPS = 12


def built(kind: str) -> tuple[Any, Any, list[Any]]:
    """Return a model, its optimizer with two groups, and schedulers."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.05, "weight_decay": 0.02}]
    sgd = torch.optim.SGD(groups, 0.2, weight_decay=0.01)
    if kind == "warm-up":
        rise = schedules.LambdaLR(sgd, lambda step: min(1.0, step / 4))  # the first rate is 0
        return model, sgd, [rise]
    rise, fall = schedules.LinearLR(sgd, 0.1, total_iters=3), schedules.CosineAnnealingLR(sgd, STEPS - 3)
    if kind == "sequential":
        return model, sgd, [schedules.SequentialLR(sgd, [rise, fall], [3])]
    return model, sgd, [schedules.ExponentialLR(sgd, 0.9), schedules.StepLR(sgd, 4, 0.5)]


def passed(model: Any, step: int) -> None:
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(16, 6, generator=g), torch.randint(3, (16,), generator=g)
    torch.nn.functional.cross_entropy(model(x), y).backward()


@pytest.mark.parametrize("flags", [ASYNC, ("--consistency=bsp",)], ids=["asp", "bsp"])
@pytest.mark.parametrize("kind", ["warm-up", "sequential", "two"])
def test_schedulers_are_those_of_torch(tmp_path: Path, kind: str, flags: tuple[str, ...]) -> None:
    """The weights are those of torch, also if processes die in between."""
    model, sgd, schedulers = built(kind)
    for step in range(STEPS):
        passed(model, step)
        sgd.step()
        for of in schedulers:
            of.step()
        sgd.zero_grad()

    class Steps:
        done = 0

        def state_dict(self) -> dict[str, Any]:
            return {"done": self.done}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.done = state["done"]

    def life(job: perdure.Job, death: int) -> Any:
        mine, optimizer, its = built(kind)
        steps = Steps()
        with (
            warnings.catch_warnings(action="error", category=UserWarning),  # of torch, about the order of calls
            perdure.ServerOptimizer(job, mine, optimizer, state=[steps], schedulers=its) as p,
        ):
            while steps.done < STEPS:
                passed(mine, steps.done)
                steps.done += 1
                p.step()
                p.zero_grad()
                if death < 3 and steps.done == 3 * (death + 1):
                    raise Death
        return list(mine.parameters())

    for ours, theirs in zip(lives(tmp_path, life, 3, *flags), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rates_are_refused(tmp_path: Path) -> None:
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", *ASYNC)
    with of.join(0) as job:

        def refused(match: str, optimizer: Any, **settings: Any) -> None:
            with pytest.raises(UsageError, match=match):
                perdure.ServerOptimizer(job, linear, optimizer, **settings)

        linear = torch.nn.Linear(2, 2)
        for kind in (torch.optim.Adam, lambda of, rate: torch.optim.SGD(of, rate, momentum=0.9)):
            optimizer = kind(linear.parameters(), 0.1)
            scheduler = schedules.StepLR(optimizer, 10)
            refused("not in schedulers=.*constant rate", optimizer)
            refused("constant rate", optimizer, schedulers=[scheduler])
        sgd = torch.optim.SGD(linear.parameters(), 0.1)
        refused("another optimizer", sgd, schedulers=[scheduler])
        refused("torch.optim: pass one", perdure.SGD(0.1), schedulers=[scheduler])
        refused("depends on evaluations", sgd, schedulers=[schedules.ReduceLROnPlateau(sgd)])
        scheduler = schedules.StepLR(sgd, 10)
        refused(r"list it in schedulers=", sgd, state=[scheduler])
        refused("GradScaler.*bfloat16", perdure.SGD(0.1), state=[torch.amp.GradScaler("cpu")])
        sgd = torch.optim.SGD(linear.parameters(), 0.1)
        with perdure.ServerOptimizer(job, linear, sgd) as p:
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(linear(torch.ones(1, 2)).sum()).backward()
            with pytest.raises(UsageError, match=r"GradScaler.*bfloat16"):
                p.step()
            del scaler
            p.zero_grad()
            linear(torch.ones(1, 2)).sum().backward()
            p.step()
            sgd.param_groups[0]["lr"] = 0.2
            with pytest.raises(UsageError, match="has changed the optimizer's rate"):
                p.step()
            sgd.param_groups[0]["lr"] = 0.1
            with pytest.raises(UsageError, match="state= instead"):
                job.save_state(b"")
            schedules.StepLR(sgd, 10)
            with pytest.raises(UsageError, match="not in schedulers="):
                p.step()
    of.end()


def test_a_scheduler_that_the_program_steps_is_refused(job: perdure.Job) -> None:
    linear = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(linear.parameters(), 0.1)
    scheduler = schedules.ExponentialLR(sgd, 0.9)
    with perdure.ServerOptimizer(job, linear, sgd, schedulers=[scheduler]) as p:
        linear(torch.ones(1, 2)).sum().backward()
        p.step()
        scheduler.step()
        with pytest.raises(UsageError, match="let ServerOptimizer call its step"):
            p.step()


def test_a_printed_clock_is_no_counter(tmp_path: Path) -> None:
    """A second pass over the data is refused if the program only prints the clock."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "1000000000", *ASYNC)
    with of.join(0) as job:
        linear = torch.nn.Linear(2, 2)
        loader = torchdata.StatefulDataLoader([torch.ones(2)] * 4, batch_size=2)
        p = perdure.ServerOptimizer(job, linear, perdure.SGD(0.1), state=[loader])
        said = []
        with pytest.raises(UsageError, match="second pass"):
            for _ in range(2):
                for x in loader:
                    linear(x).sum().backward()
                    p.step()
                    p.zero_grad()
                    said += [f"clock {job.now:3d}", "at %s" % job.now, str(job.now), repr(job.now)]  # noqa: UP031
        assert said[-4:] == ["clock   3", "at 3", "3", "3"]
        now = job.now
        assert (now + 1, range(now)[-1], pickle.loads(pickle.dumps(now)), {3: "x"}[now]) == (4, 2, 3, "x")
        assert type(pickle.loads(pickle.dumps(now))) is int
        for x in loader:  # the program has computed with the clock
            linear(x).sum().backward()
            p.step()
    of.end()


@pytest.mark.parametrize("flags", [ASYNC, ("--consistency=bsp", "--recovery=resend:auto")], ids=["asp", "bsp"])
def test_data_without_a_position(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A program that reads from a DataLoader warns, and so does a replacement of a program that lists none."""
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", *flags)

    def step(p: perdure.ServerOptimizer, linear: Any, x: Any) -> None:
        linear(x).sum().backward()
        p.step()
        p.zero_grad()

    with pytest.raises(Death), of.join(0) as job:
        linear = torch.nn.Linear(2, 2)
        p = perdure.ServerOptimizer(job, linear, perdure.SGD(0.1))
        batches = iter(torch.utils.data.DataLoader([torch.ones(2)] * 4, batch_size=2))
        with pytest.warns(RuntimeWarning, match="reads from a DataLoader"):
            step(p, linear, next(batches))
        raise Death
    with of.join(0) as job:
        linear = torch.nn.Linear(2, 2)
        p = perdure.ServerOptimizer(job, linear, perdure.SGD(0.1))
        with pytest.warns(RuntimeWarning, match="lists no loader: unless"):
            step(p, linear, torch.ones(1, 2))
        with warnings.catch_warnings(action="error", category=RuntimeWarning):
            step(p, linear, torch.ones(1, 2))
    of.end()


def test_the_number_of_slots_is_fixed(tmp_path: Path) -> None:
    """A request to change it is refused, and the job continues."""
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", *ASYNC)
    with of.join(0) as job:
        linear = torch.nn.Linear(2, 2)
        with perdure.ServerOptimizer(job, linear, perdure.SGD(0.1)) as p:
            command = [os.environ["PERDURE_BINARY"], "scale", "--run", str(tmp_path / "run"), "2"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode != 0
            assert "their number is fixed at 1" in done.stderr
            for _ in range(5):
                linear(torch.ones(1, 2)).sum().backward()
                p.step()
    of.end()


def test_the_end_of_a_job_is_explained(tmp_path: Path) -> None:
    of = Cluster(tmp_path, "--workers", "1", "--servers", "1", *ASYNC)
    with of.join(0) as job:
        linear = torch.nn.Linear(2, 2)
        p = perdure.ServerOptimizer(job, linear, perdure.SGD(0.1))
        job.end_job()
        job._ended_itself = False  # as in another slot
        with pytest.raises(perdure.Done):
            for _ in range(20):
                linear(torch.ones(1, 2)).sum().backward()
                p.step()
        with pytest.warns(RuntimeWarning, match="a program has ended the job"):
            p.finish()
    of.end()
