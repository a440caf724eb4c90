"""The data that slots train: shares of unequal length, changed numbers of slots, loaders that are read early."""

from __future__ import annotations

import json
import subprocess
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SMALL, Cluster

import perdure

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

UNEQUAL = (3, 12)  # numbers of batches of the two slots


def together(*of: Callable[[], Any]) -> list[Any]:
    """Call functions in threads, and return what each has returned or raised."""
    came: list[Any] = [None] * len(of)

    def call(i: int) -> None:
        try:
            came[i] = of[i]()
        except Exception as error:
            came[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(of))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def loader_of(batches: int) -> Any:
    return StatefulDataLoader(torch.arange(2.0 * batches), batch_size=2)


def trainer_of(how: str, job: perdure.Job, loader: Any, **settings: Any) -> tuple[Any, Callable[[Any], None]]:
    """Return a trainer of one weight, and a function that makes a step on a batch."""
    model = torch.nn.Linear(1, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), 0.01)
    if how == "parallel":
        trainer: Any = perdure.ServerOptimizer(job, model, perdure.SGD(0.01), state=[loader], **settings)
    else:
        trainer = perdure.DiLoCo(job, model, inner, sync_every=2, state=[loader], **settings)

    def step(batch: Any) -> None:
        model.zero_grad()
        model(batch[:, None]).sum().backward()
        (trainer if how == "parallel" else inner).step()

    return trainer, step


def train(how: str, job: perdure.Job, batches: int, epochs: int = 1, **settings: Any) -> list[float]:
    """Train a slot to its end, and return the batches of its steps."""
    with job:
        loader = loader_of(batches)
        trainer, step = trainer_of(how, job, loader, **settings)
        made = []
        with trainer:
            for _ in range(1) if epochs == 1 else job.epochs(epochs):
                for batch in loader:
                    step(batch)
                    made.append(batch[0].item())
    return made


@pytest.mark.parametrize(
    ("how", "epochs", "said"),
    [
        ("parallel", 1, " of 12 batches were not trained"),
        ("parallel", 5, " of 60 batches were not trained"),  # in the second of slot 1's epochs
        ("diloco", 1, " of 12 batches were not trained, 2 steps since its last outer step do not count"),
    ],
)
def test_the_first_slot_ends_the_job(tmp_path: Path, how: str, epochs: int, said: str) -> None:
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "1000")
    jobs = [cluster.join(slot) for slot in range(2)]
    with pytest.warns(RuntimeWarning, match="slot 1: the job ended at clock .*with end='all' each slot trains all"):
        short, long = together(*(lambda slot=slot: train(how, jobs[slot], UNEQUAL[slot], epochs) for slot in range(2)))
    assert len(short) == epochs * UNEQUAL[0]
    assert len(long) < epochs * UNEQUAL[1]
    assert cluster.owner.process.wait() == 0
    (line,) = json.loads((tmp_path / "run" / "summary.json").read_text())["findings"]
    assert line.startswith("slot 1 was not done when the job ended: ")
    assert said in line
    left = int(line.split(": ")[1].split(" of ")[0])
    assert epochs * UNEQUAL[1] - len(long) - left in (0, 1)  # the step that the end has interrupted
    events = [json.loads(of) for of in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [of["text"] for of in events if of["kind"] == "untrained"] == [line]


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_the_last_slot_ends_the_job(tmp_path: Path, how: str) -> None:
    """A slot that is done has almost no weight, so the model is that of the other slot."""
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "1000")
    jobs = [cluster.join(slot) for slot in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        made = together(*(lambda slot=slot: train(how, jobs[slot], UNEQUAL[slot], end="all") for slot in range(2)))
    assert [len(of) for of in made] == list(UNEQUAL)
    assert cluster.owner.process.wait() == 0
    assert "findings" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_a_slot_that_was_done_stays_so(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "1000")
    with pytest.raises(RuntimeError, match="killed"), cluster.join(0) as job:
        loader = loader_of(3)
        trainer, step = trainer_of("parallel", job, loader, end="all")
        for batch in loader:
            step(batch)
        trainer._ending._table.inc([0], [[1.0]])  # as in its first clock without work
        trainer._weigh(1.0)
        job.clock()
        raise RuntimeError("killed")
    assert train("parallel", cluster.join(0), 3, end="all") == []
    assert cluster.owner.process.wait() == 0


def test_end_is_checked(job: perdure.Job) -> None:
    with pytest.raises(perdure.UsageError, match=r"^invalid end 'last': choose 'first' or 'all'"):
        trainer_of("parallel", job, loader_of(1), end="last")


def scale(cluster: Cluster, slots: int) -> None:
    command = [str(ROOT / "bin" / "perdure"), "scale", "--run", str(cluster.folder / "run"), str(slots)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_another_number_of_slots_is_refused(tmp_path: Path, how: str) -> None:
    """No slot trains another share of the data. With the original number of slots, each continues at its position."""
    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "2", "--clocks", "1000", "--recovery", "chain:2")
    made: list[list[float]] = [[], []]

    def life(slot: int, until: int) -> None:
        with cluster.join(slot) as job:
            loader = loader_of(8)
            trainer, step = trainer_of(how, job, loader)
            with trainer:
                for batch in loader:
                    step(batch)
                    made[slot].append(batch[0].item())
                    if len(made[slot]) == until:
                        barrier.wait()
                        barrier.wait()

    barrier = threading.Barrier(3)
    came: list[Any] = []
    training = threading.Thread(target=lambda: came.extend(together(lambda: life(0, 2), lambda: life(1, 2))))
    training.start()
    barrier.wait()
    scale(cluster, 3)
    barrier.wait()
    late = together(lambda: life(2, 0))
    training.join()
    for error in (*came, *late):
        assert isinstance(error, perdure.UsageError), error
        assert "divided among 2 slots" in str(error)
        assert "`perdure scale 2`" in str(error)
    scale(cluster, 2)
    came = together(lambda: life(0, 0), lambda: life(1, 0), lambda: life(2, 0))  # ends the last clock with three slots
    while any(isinstance(error, perdure.UsageError) for error in came[:2]):
        came = together(lambda: life(0, 0), lambda: life(1, 0))
    assert came[:2] == [None, None]
    all_of_them = [2.0 * i for i in range(8)]
    assert [sorted(set(of)) for of in made] == [all_of_them] * 2
    if how == "parallel":  # DiLoCo repeats the steps since the last outer one
        assert made == [all_of_them] * 2
    cluster.end()


def test_loaders_that_are_read_early(job: perdure.Job) -> None:
    loader = loader_of(9)
    begun = iter(loader)
    next(begun)
    trainer, step = trainer_of("parallel", job, loader)
    with pytest.raises(perdure.UsageError, match=r"state\[0\], a StatefulDataLoader, .* iterator"):
        step(next(begun))
    again = iter(loader)
    step(next(again))
    trainer.finish()


@pytest.mark.parametrize("how", ["parallel", "diloco"])
@pytest.mark.parametrize("each", [1, 2])
def test_a_loader_that_is_ahead(job: perdure.Job, how: str, each: int) -> None:
    """As in nanoGPT's loop, each batch is read before the step on the previous one."""
    loader = loader_of(19)
    trainer, step = trainer_of(how, job, loader)
    batches = iter(loader)
    batch = next(batches)

    def steps(batch: Any) -> None:
        for _ in range(5):
            for _ in range(each):
                following = next(batches)
            step(batch)
            batch = following

    with pytest.warns(RuntimeWarning, match="state.0., a StatefulDataLoader, is one batch ahead of the step") as said:
        steps(batch)
    assert len([of for of in said if of.category is RuntimeWarning]) == 1
    trainer.finish()


def test_loaders_in_step_are_not_warned_of(job: perdure.Job) -> None:
    loader = loader_of(4)
    trainer, step = trainer_of("diloco", job, loader)
    next(iter(loader))  # a batch that is not trained
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(3):
            for batch in loader:
                step(batch)
    trainer.finish()


def test_loaders_out_of_order(job: perdure.Job) -> None:
    loader = StatefulDataLoader(torch.arange(4.0), num_workers=1, in_order=False)
    with pytest.raises(perdure.UsageError, match=r"state\[0\], a StatefulDataLoader, has in_order=False"):
        trainer_of("parallel", job, loader)


def test_shuffle_buffers_are_refused(tmp_path: Path) -> None:
    """The state of a Hugging Face streaming dataset lacks the shuffle buffer, whose examples would be lost."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    class Examples:
        def __init__(self, *of: Any) -> None:
            self.ex_iterables = of

    class BufferShuffledExamplesIterable(Examples): ...

    class Data(torch.utils.data.IterableDataset):
        def __init__(self, of: Any) -> None:
            self._ex_iterable = of

        def __iter__(self) -> Any:
            return iter(())

    model = torch.nn.Linear(2, 1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        loader = loaders.StatefulDataLoader(Data(Examples(Examples(), BufferShuffledExamplesIterable())))
        with pytest.raises(perdure.UsageError, match=r"state\[0\], a StatefulDataLoader, .* shuffle buffer"):
            perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[loader])
        loader = loaders.StatefulDataLoader(Data(Examples(Examples())))
        perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[loader])
