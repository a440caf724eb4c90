"""Each sample of a Sampler counts once per epoch: through kills, changes of the number of slots, and uneven ends."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster
from sampled import train
from test_data import together

import perdure

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
def test_kills(tmp_path: Path, workers: int) -> None:
    """The model is that of the calm training, whatever the processes of the loader have read ahead."""
    given: dict[str, Any] = {"length": 97, "epochs": 2, "batch": 6}  # the last clock of an epoch has one sample
    calm = train(tmp_path, "calm", "parallel", **given)
    deaths = [(0, 3, 0), (1, 8, 0), (0, 9, 0), (0, 10, 0), (1, 11, 0)]
    storm = train(tmp_path, "storm", "parallel", **given, workers=workers, deaths=deaths)
    assert storm == calm
    assert storm.once()
    if workers:  # the position returns to the checkpoint with the model
        faults = [f"--fault=kill:server:{of}" for of in ("0@clock:7", "1@clock:13")]
        back = train(tmp_path, "back", "parallel", "--recovery", "checkpoint:3", *faults, **given, workers=workers)
        assert back == calm


@pytest.mark.parametrize(
    ("how", "length", "scale", "deaths"),
    [
        (
            "parallel",
            97,
            {2: (3, 4), 5: (2, 7), 9: (3, 11)},
            [(0, 3, 0), (1, 4, 0), (2, 4, 0), (2, 6, 0), (0, 7, 0), (2, 11, 0)],
        ),
        ("diloco", 197, {1: (3, 3), 4: (2, 6)}, [(0, 2, 3), (1, 3, 2), (2, 3, 0), (2, 5, 3), (0, 6, 1)]),
    ],
)
def test_scale(
    tmp_path: Path, how: str, length: int, scale: dict[int, tuple[int, int]], deaths: list[tuple[int, int, int]]
) -> None:
    """Two slots, then three, then two, in the middle of an epoch, and three again with the same slot number."""
    given: dict[str, Any] = {"length": length, "epochs": 2, "batch": 6, "scale": scale}
    calm = train(tmp_path, "calm", how, "--recovery", "chain:2", **given)
    storm = train(tmp_path, "storm", how, "--recovery", "chain:2", **given, workers=2, deaths=deaths)
    assert storm == calm
    assert storm.once()
    more, fewer, *again = (at for _, at in scale.values())
    each = 6 if how == "parallel" else 24
    assert [Counter(calm.clocks)[more - 1, slot] for slot in range(3)] == [each, each, 0]
    assert [Counter(calm.clocks)[more, slot] for slot in range(3)] == [each] * 3
    third = {clock for clock, slot in calm.clocks if slot == 2}
    assert max(clock for clock in third if not again or clock < again[0]) == fewer - 1
    assert bool(again) == (max(third) > fewer)


@pytest.mark.parametrize(("recovery", "copy"), [("chain:2,checkpoint:5", True), ("checkpoint:3", False)])
def test_scale_with_own_optimizer(tmp_path: Path, recovery: str, copy: bool) -> None:
    """The first process of a slot that joins copies the weights, also if all others have just been rolled back."""
    given: dict[str, Any] = {"length": 102, "epochs": 2, "batch": 6, "copy": copy, "scale": {2: (3, 4), 5: (2, 7)}}
    calm = train(tmp_path, "calm", "own", "--recovery", "checkpoint:100", **given)
    deaths = [(0, 3, 0), (1, 4, 0), (2, 4, 0), (2, 5, 0), (2, 6, 0), (0, 6, 0), (0, 7, 0), (1, 9, 0)]
    storm = train(tmp_path, "storm", "own", "--recovery", recovery, **given, workers=2, deaths=deaths)
    assert storm == calm
    assert storm.once()
    assert [[Counter(calm.clocks)[clock, slot] for slot in range(3)] for clock in (3, 4, 6, 7)] == [
        [6, 6, 0], [6, 6, 6], [6, 6, 6], [6, 6, 0],
    ]  # fmt: skip


def test_joins_at_an_epochs_end(tmp_path: Path) -> None:
    """The copy already contains the code at the epoch's end, so the new process does not run it again."""
    given: dict[str, Any] = {"length": 102, "epochs": 2, "batch": 6, "scale": {5: (3, 10)}}
    calm = train(tmp_path, "calm", "own", "--recovery", "checkpoint:100", **given)
    deaths = [(2, 10, 0), (0, 10, 0), (1, 11, 0)]
    storm = train(tmp_path, "storm", "own", "--recovery", "resend:100", **given, deaths=deaths)
    assert storm == calm
    assert storm.once()
    assert [Counter(calm.clocks)[clock, 2] for clock in (9, 10)] == [0, 6]


def test_global_batch(tmp_path: Path) -> None:
    """A clock trains the same samples, whatever the number of slots is."""
    given: dict[str, Any] = {"length": 97, "epochs": 2, "batch": 12, "settings": {"global_batch": True}}
    two = train(tmp_path, "two", "parallel", **given)
    both = train(tmp_path, "both", "parallel", **given, scale={2: (3, 4), 5: (2, 7)}, workers=2)
    assert [clock for clock, _ in both.clocks] == [clock for clock, _ in two.clocks]
    assert both.once()
    assert [Counter(both.clocks)[5, slot] for slot in range(3)] == [4] * 3


def test_drafts(tmp_path: Path) -> None:
    """A draft has the position within the steps between two outer ones."""
    given: dict[str, Any] = {"length": 197, "epochs": 2, "batch": 6, "sync_every": 6}
    calm = train(tmp_path, "calm", "drafts", **given)
    deaths = [(0, 1, 3), (1, 2, 2), (0, 2, 3), (1, 4, 1)]
    assert train(tmp_path, "storm", "drafts", **given, workers=2, deaths=deaths).hash == calm.hash


X = torch.arange(1.0, 12)


@pytest.mark.parametrize(
    "length", [11, 7]
)  # with three slots, 6 samples in a clock: the last clock has 5 samples, or one
@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_mean_over_samples(tmp_path: Path, how: str, length: int) -> None:
    """The update is the mean over the samples, as if one process had trained them all, although shares differ."""
    cluster = Cluster(tmp_path, "--workers", "3", "--servers", "1", "--clocks", "1000")
    jobs = [cluster.join(slot) for slot in range(3)]

    def life(slot: int) -> tuple[float, list[int], list[int]]:
        with jobs[slot] as job:
            model = torch.nn.Linear(1, 1, bias=False)
            model.weight.data.fill_(0.5)
            sampler = perdure.Sampler(job, length, 2)
            loader = sampler.loader(DataLoader(list(range(length)), batch_sampler=sampler))
            inner = torch.optim.SGD(model.parameters(), 0.01)
            trainer: Any
            if how == "parallel":
                trainer = perdure.ServerOptimizer(job, model, inner)
            else:
                trainer = perdure.DiLoCo(job, model, inner, sync_every=1, outer=perdure.SGD(1.0))
            seen = []
            with trainer:
                for _ in job.epochs(1):
                    for numbers in loader:
                        model.zero_grad()
                        (model(X[numbers, None]) - 1).square().mean().backward()
                        trainer.step() if how == "parallel" else inner.step()
                        seen += numbers.tolist()
            return model.weight.item(), seen, sampler._order(0).tolist()

    found = together(*(lambda slot=slot: life(slot) for slot in range(3)))
    assert cluster.owner.process.wait() == 0
    assert sorted(number for _, seen, _ in found for number in seen) == list(range(length))
    assert len({weight for weight, _, _ in found}) == 1
    weight, order = torch.tensor(0.5, requires_grad=True), torch.tensor(found[0][2])
    for clock in order.split(6):
        (gradient,) = torch.autograd.grad((weight * X[clock] - 1).square().mean(), weight)
        weight = (weight - 0.01 * gradient).detach().requires_grad_()
    assert found[0][0] == pytest.approx(weight.item(), rel=1e-5)


@pytest.fixture
def sampler(job: perdure.Job) -> perdure.Sampler:
    return perdure.Sampler(job, 12, 2)


DATA = torch.arange(12.0)


def trained(how: str, job: perdure.Job, **settings: Any) -> tuple[Any, Callable[[Any], None]]:
    """Return a trainer of one weight, and a function that makes a step on a batch."""
    model = torch.nn.Linear(1, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), 0.01)
    trainer: Any
    if how == "parallel":
        trainer = perdure.ServerOptimizer(job, model, perdure.SGD(0.01), **settings)
    else:
        trainer = perdure.DiLoCo(job, model, inner, sync_every=2, **settings)

    def step(batch: Any) -> None:
        model.zero_grad()
        model(batch[:, None]).sum().backward()
        (trainer if how == "parallel" else inner).step()

    return trainer, step


def test_loaders(job: perdure.Job, sampler: perdure.Sampler) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    for make, said in (
        (lambda: DataLoader(DATA, batch_size=2), "the batch_sampler of the DataLoader is a BatchSampler, and not this"),
        (
            lambda: DataLoader(DATA, batch_sampler=sampler, num_workers=1, in_order=False),
            "the loader has in_order=False",
        ),
        (
            lambda: DataLoader(DATA[:11], batch_sampler=sampler),
            "the loader's data have 11 samples, fewer than the Sampler's length 12",
        ),
    ):
        with pytest.raises(perdure.UsageError) as refused:
            sampler.loader(make())
        assert str(refused.value).startswith(said)
    for loader in (DataLoader(DATA, batch_sampler=sampler), stateful(DATA, batch_sampler=sampler)):
        assert len(loader) == 6
        with pytest.raises(perdure.UsageError, match=r"reads the Sampler, but .* loop over sampler\.loader\(loader\)"):
            iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["DataLoader", "StatefulDataLoader"])
def test_kinds_of_loaders(job: perdure.Job, sampler: perdure.Sampler, kind: str, workers: int) -> None:
    """Loops that were started before the trainer, or left early, lose no sample."""
    module = torch.utils.data if kind == "DataLoader" else pytest.importorskip("torchdata.stateful_dataloader")
    loader = sampler.loader(getattr(module, kind)(DATA, batch_sampler=sampler, num_workers=workers))
    begun = iter(loader)
    next(begun)  # a look at the data, without a step
    seen: list[list[float]] = [[], []]
    trainer, step = trained("parallel", job, state=[loader, sampler])
    with trainer:
        for epoch in job.epochs(2):
            for batch in loader:
                step(batch)
                seen[epoch] += batch.tolist()
                if epoch == 0 and len(seen[0]) == 4:
                    break
            for batch in loader if epoch == 0 else ():
                step(batch)
                seen[epoch] += batch.tolist()
    assert [sorted(of) for of in seen] == [DATA.tolist()] * 2
    assert seen[0] != seen[1]


def test_states(job: perdure.Job, sampler: perdure.Sampler, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    raw = DataLoader(DATA, batch_sampler=sampler)
    for state, said in (
        ([raw], r"the DataLoader in state= uses a Sampler: loop over sampler\.loader\(loader\)"),
        ([stateful(DATA)], r"the StatefulDataLoader in state= does not use the job's Sampler"),
    ):
        with pytest.raises(perdure.UsageError, match=said):
            trained("parallel", job, state=state)
    with pytest.raises(perdure.UsageError, match="omit end='all': with a Sampler all slots"):
        trained("parallel", job, end="all")
    with perdure.start(out=tmp_path / "other", args=("--shards", "2")) as other:
        of_other = perdure.Sampler(other, 12, 2)
        with pytest.raises(perdure.UsageError, match="the Sampler in state= was created for another job"):
            trained("parallel", job, state=[of_other])


def test_trainers_of_libraries(job: perdure.Job, sampler: perdure.Sampler) -> None:
    from perdure._trainers import Outer

    model = torch.nn.Linear(1, 1)
    outer = Outer(
        job,
        sync_every=1,
        overlap=0,
        mix=None,
        compress=None,
        compress_weights=None,
        outer=None,
        weights=None,
        state=[],
        end="first",
    )
    with pytest.raises(perdure.UsageError, match="a Sampler does not work with a trainer, which reads batches ahead"):
        outer.begin(model, torch.optim.SGD(model.parameters(), 0.1), [], dict, lambda: None)


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_second_pass(tmp_path: Path, how: str) -> None:
    with perdure.start(servers=1, out=tmp_path / "run", args=("--shards", "2")) as job:
        sampler = perdure.Sampler(job, 12, 2)
        loader = sampler.loader(DataLoader(DATA, batch_sampler=sampler))
        trainer, step = trained(how, job)
        with pytest.raises(perdure.UsageError, match=r"the Sampler starts a second pass .*job\.epochs\(3\)"), trainer:
            for _ in range(3):
                for batch in loader:
                    step(batch)
        assert sampler.epoch == 1


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_a_loop_that_is_ahead(job: perdure.Job, sampler: perdure.Sampler, how: str) -> None:
    trainer, step = trained(how, job)
    batches = iter(sampler.loader(DataLoader(DATA, batch_sampler=sampler)))

    def steps(batch: Any) -> None:
        for following in batches:
            step(batch)
            batch = following

    with pytest.warns(RuntimeWarning, match="the Sampler is one batch ahead of the step"):
        steps(next(batches))
    trainer.finish()


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_loops_in_step(job: perdure.Job, sampler: perdure.Sampler, how: str) -> None:
    trainer, step = trained(how, job)
    with warnings.catch_warnings(), trainer:
        warnings.simplefilter("error", RuntimeWarning)
        for _ in job.epochs(2):
            for batch in sampler.loader(DataLoader(DATA, batch_sampler=sampler)):
                step(batch)


def test_accumulated_gradients(tmp_path: Path) -> None:
    """With a step every two batches, a last batch without a sample is refused in the slot that has none."""
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "1000")
    jobs = [cluster.join(slot) for slot in range(2)]
    refused = threading.Event()

    def life(slot: int) -> None:
        with jobs[slot] as job:
            sampler = perdure.Sampler(job, 5, 2, shuffle=False)
            trainer, _ = trained("parallel", job)
            try:
                for i, batch in enumerate(sampler.loader(DataLoader(DATA, batch_sampler=sampler))):
                    trainer.model(batch[:, None]).sum().backward()
                    if i % 2:
                        assert refused.wait(60)
            finally:
                refused.set()
            raise RuntimeError("left")

    came = together(*(lambda slot=slot: life(slot) for slot in range(2)))
    cluster.end()
    assert isinstance(came[0], RuntimeError)
    assert isinstance(came[1], perdure.UsageError)
    assert "gradients that add up over several batches need drop_last=True" in str(came[1])
