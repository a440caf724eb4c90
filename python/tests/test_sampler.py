"""The order of a Sampler, its division among slots, and its use without PyTorch."""

from __future__ import annotations

import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, SMALL, Cluster

import perdure
from perdure.job import _Now
from perdure.sampler import Sampler


class OneSlot:
    """A job as one of its slots sees it. ``together`` is the table that all slots share."""

    def __init__(self, together: dict[int, Any], slot: int, consistency: str = "bsp") -> None:
        self.spec = {"consistency": consistency}
        self.slot, self.together = slot, together
        self.members = (0,)
        self.clock = self.end = 0
        self.generation = 1
        self._sampler: Any = None
        self._trained = self._inced = False
        self._island: Any = None
        self._stream = slot

    def _now(self) -> _Now:
        below = sum(of < self.slot for of in self.members)
        return _Now(self.clock, self.end, self.generation, perdure.Share(below, len(self.members)))

    def table(self, name: str, dim: int, rule: Any) -> Any:
        return self

    def inc(self, rows: Any, values: Any) -> None:
        for row, of in zip(rows, values, strict=True):
            self.together[int(row)] = of

    def get(self, rows: Any) -> Any:
        return np.array([self.together.get(row, np.zeros(11)) for row in rows])

    def prefetch(self, rows: Any) -> None:
        pass

    def end_clock(self, members: tuple[int, ...]) -> None:
        self._sampler._before_clock()
        self.clock += 1
        self.members = members
        self._sampler._after_clock(True)


@pytest.mark.parametrize("back", [1, 2, 3, 4, 5])
def test_rollback_in_a_loop_over_epochs(back: int) -> None:
    """A loop that continues after a rollback trains the rest of the restored epoch, and all later epochs."""
    job = OneSlot({}, 0)
    sampler, counted = Sampler(job, 8, batch=4), np.zeros(8)
    saved: list[tuple[Any, Any]] = []  # by clock
    for _ in perdure.Job._each_epoch(job, 4):  # type: ignore[arg-type]
        for numbers in sampler:
            if len(saved) == job.clock:
                saved.append((dict(job.together), counted.copy()))
            counted[numbers] += 1
            if job.clock == 5 and job.generation == 1:
                job.clock, job.generation = 5 - back, 2
                job.together, counted = dict(saved[job.clock][0]), saved[job.clock][1].copy()
                sampler._after_clock(True)
            else:
                job.end_clock((0,))
    assert (counted == 4).all()


def plainly(
    length: int,
    batch: int,
    slots: list[int],
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    global_batch: bool = False,
) -> list[list[list[int]]]:
    """Return the samples of each clock by rank, as docs/guide/pytorch-data.md describes them.

    Args:
        slots: The number of slots in each clock. The last one continues to the end of the second epoch.
    """
    clocks: list[list[list[int]]] = []
    for epoch in range(2):
        order = list(range(length))
        if shuffle:
            keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(length).tolist()
            order.sort(key=lambda i: keys[i])
        while order:
            n = slots[min(len(clocks), len(slots) - 1)]
            whole = batch if global_batch else batch * n
            if drop_last and len(order) < length and len(order) < whole:
                break
            now, order = order[:whole], order[whole:]
            clocks.append([])
            for rank in range(n):
                count = len(now) // n + (rank < len(now) % n)
                already = sum(len(of) for of in clocks[-1])
                clocks[-1].append(now[already : already + count])
    return clocks


def test_ranks_of_an_island() -> None:
    """The ranks have equal parts of their slot's batch, and one that cannot be divided is refused."""
    parts = []
    for rank in range(3):
        job = OneSlot({}, 0)
        job._island = types.SimpleNamespace(rank=rank, size=3)
        parts.append(next(iter(Sampler(job, 24, batch=12, drop_last=True))))  # type: ignore[arg-type]
        for settings in ({"batch": 12}, {"batch": 12, "drop_last": True, "global_batch": True}):
            job._sampler = None
            with pytest.raises(perdure.UsageError, match="needs drop_last=True and no global_batch"):
                Sampler(job, 24, **settings)  # type: ignore[arg-type]
        with pytest.raises(perdure.UsageError, match="10 samples cannot be divided equally among the 3 ranks"):
            next(iter(Sampler(job, 24, batch=10, drop_last=True)))  # type: ignore[arg-type]
    assert [numbers for part in parts for numbers in part] == plainly(24, 12, [1])[0][0]


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"drop_last": True}, {"global_batch": True}])
@pytest.mark.parametrize("length", [1, 5, 24, 97])
@pytest.mark.parametrize("slots", [[1], [3], [2, 2, 3, 3, 1, 4, 2]])
def test_order(length: int, slots: list[int], settings: dict[str, Any]) -> None:
    """Slots that join read the position from the table. All slots then have the same order."""
    given = {"seed": 2**63 + 5, **settings}
    expected = plainly(length, 4, slots, **given)
    together: dict[int, Any] = {}
    there: dict[int, tuple[OneSlot, Any]] = {}
    for clock, of_ranks in enumerate(expected):
        members = tuple(range(len(of_ranks)))
        for slot in members:
            if slot not in there:
                job = OneSlot(together, slot)
                job.clock, job.members = clock, members
                there[slot] = (job, numbers(job, Sampler(job, length, 4, **given)))  # type: ignore[arg-type]
        for slot in [slot for slot in there if slot not in members]:
            del there[slot]
        assert [next(of) for _, of in (there[slot] for slot in members)] == of_ranks
        following = tuple(range(len(expected[clock + 1]))) if clock + 1 < len(expected) else members
        for slot in members:
            there[slot][0].end_clock(following)
    for _, of in there.values():
        assert next(of, None) is None
    every = sorted(number for of_ranks in expected for of in of_ranks for number in of)
    if not settings.get("drop_last"):
        assert every == sorted([*range(length), *range(length)])
        assert len(numbers_of(there)) == 1


def numbers(job: OneSlot, sampler: Any) -> Any:
    while sampler.epoch < 2:
        yield from sampler


def numbers_of(there: dict[int, tuple[OneSlot, Any]]) -> set[int]:
    return {job._sampler.epoch for job, _ in there.values()}


def test_length() -> None:
    job: Any = OneSlot({}, 0)
    job.members = (0, 1, 2)
    assert len(Sampler(job, 25, 4)) == 3
    assert len(Sampler(OneSlot({}, 0), 25, 4, drop_last=True)) == 6  # type: ignore[arg-type]
    assert len(Sampler(OneSlot({}, 0), 3, 4, drop_last=True)) == 1  # type: ignore[arg-type]
    assert len(job._sampler) == len(list(job._sampler))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 0}, "invalid length 0: a Sampler needs 1 sample or more"),
        ({"length": -1}, "invalid length -1"),
        ({"batch": 0}, "invalid batch 0: choose 1 or more samples"),
        ({"batch": 1, "global_batch": True}, "batch 1 with global_batch=True is smaller than the number of slots, 2"),
        ({"seed": -1}, "invalid seed -1"),
        ({"seed": 2**64}, "invalid seed 18446744073709551616"),
    ],
)
def test_refused_settings(settings: dict[str, Any], said: str) -> None:
    job: Any = OneSlot({}, 0)
    job.members = (0, 1)
    with pytest.raises(perdure.UsageError) as refused:
        Sampler(job, **({"length": 9, "batch": 3} | settings))
    assert str(refused.value).startswith(said)
    assert job._sampler is None


def test_refused_jobs() -> None:
    ssp: Any = OneSlot({}, 0, "ssp:2")
    with pytest.raises(perdure.UsageError, match=r"does not work with consistency ssp:2.*choose bsp"):
        Sampler(ssp, 9, 3)
    job: Any = OneSlot({}, 0)
    Sampler(job, 9, 3)
    with pytest.raises(perdure.UsageError, match="this job already has a Sampler"):
        Sampler(job, 9, 3)
    late: Any = OneSlot({}, 0)
    late._trained = True
    with pytest.raises(perdure.UsageError, match="create the Sampler before DataParallel"):
        Sampler(late, 9, 3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"length": 10}, "the Sampler has length 10, but 9 in the process that started the training; length must be"),
        ({"batch": 2}, "the Sampler has batch 2, but 3"),
        ({"seed": 1 << 50}, f"the Sampler has seed {1 << 50}, but 7"),
        ({"shuffle": False}, "the Sampler has shuffle False, but True"),
        ({"drop_last": True}, "the Sampler has drop_last True, but False"),
        ({"global_batch": True}, "the Sampler has global_batch True, but False"),
    ],
)
def test_other_settings(other: dict[str, Any], said: str) -> None:
    """They are refused in a replacement process at its start, and in another slot after the first clock."""
    given = {"length": 9, "batch": 3, "seed": 7}
    together: dict[int, Any] = {}
    first: Any = OneSlot(together, 0)
    Sampler(first, **given)
    second: Any = OneSlot(together, 1)
    first.members = second.members = (0, 1)
    Sampler(second, **(given | other))
    first.end_clock((0, 1))
    second.end_clock((0, 1))
    later: Any = OneSlot(together, 1)
    later.clock, later.members = 1, (0, 1)
    for refused in (lambda: next(iter(second._sampler)), lambda: Sampler(later, **(given | other))):
        with pytest.raises(perdure.UsageError) as error:
            refused()
        assert str(error.value).startswith(said)


def test_slots_that_draw_unequally() -> None:
    together: dict[int, Any] = {}
    jobs: list[Any] = [OneSlot(together, slot) for slot in (0, 1)]
    loops = []
    for job in jobs:
        job.members = (0, 1)
        loops.append(iter(Sampler(job, 90, 3)))
        next(loops[-1])
    next(loops[1])
    for job in jobs:
        job.end_clock((0, 1))
    next(loops[0])
    said = r"slots have drawn different numbers .*at epoch 0, position 12, and .* rank 0 at epoch 0, position 6;"
    with pytest.raises(perdure.UsageError, match=said):
        next(loops[1])


def test_batches_without_a_step() -> None:
    """A loop that is left before the step on its batch gets the batch again; two loops at a time are refused."""
    job: Any = OneSlot({}, 0)
    sampler = Sampler(job, 9, 3)
    peek = next(iter(sampler))
    first, second = iter(sampler), iter(sampler)
    assert next(first) == next(second) == peek
    with pytest.raises(perdure.UsageError, match="another loop reads from this Sampler"):
        next(first)
    job.end_clock((0,))
    assert next(iter(sampler)) != peek


def test_a_lost_position() -> None:
    job: Any = OneSlot({}, 0)
    job.clock = 5
    sampler = Sampler(job, 9, 3)
    sampler._resume(loaded=False)
    with pytest.raises(perdure.UsageError, match="the position in the data is unknown"):
        next(iter(sampler))
    sampler.load_state_dict({"epoch": 1, "position": 6, "samples": 3})  # the slot's own state has it
    sampler._resume(loaded=True)
    assert len(list(sampler)) == 1
    assert sampler.epoch == 2


def test_a_slot_that_joins_again() -> None:
    """Its number may have a saved state from before it left, which is old and at an earlier position."""
    together: dict[int, Any] = {}
    first: Any = OneSlot(together, 0)
    loop = iter(Sampler(first, 90, 3))
    for _ in range(8):
        next(loop)
        first.end_clock((0,))
    job: Any = OneSlot(together, 0)
    job.clock = 8
    sampler = Sampler(job, 90, 3)
    for clock, older, position, former in ((3, 0, 12, True), (7, 0, 12, False), (3, 4, 12, False), (3, 0, 24, False)):
        saved = perdure.Saved(b"", clock, older)
        assert sampler._is_former({"epoch": 0, "position": position}, saved) is former


#: Counts each sample, and dies in clocks that the arguments name.
PROGRAM = """
import os, sys
import numpy as np
import perdure
with perdure.start() as job:
    counts = job.table("counts", 2 * 50, dim=1, rule=perdure.Add())
    sampler = perdure.Sampler(job, 50, 4)
    for epoch in job.epochs(2):
        for numbers in sampler:
            counts.inc([50 * epoch + i for i in numbers], np.ones((len(numbers), 1), np.float32))
            mark = f"{sys.argv[1]}.{job.slot}.{job.now}"
            if job.now in (2, 4, 8) and not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(1)
            job.clock()
    if job.slot == 0:
        np.save(sys.argv[1], counts.get_run(0, 100))
"""


def test_program_without_torch(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    (tmp_path / "train.py").write_text(PROGRAM)
    out = tmp_path / "counts.npy"
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "3", "-q", *SMALL, "train.py", str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    assert (np.load(out) == 1).all()
    assert len(list(tmp_path.glob("counts.npy.*"))) == 9


def test_number_of_slots_changes(tmp_path: Path) -> None:
    """Two slots, then three, then two: each sample counts once, and the slot that leaves ends its loop."""
    import subprocess

    cluster = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "1000")
    counted: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
    gates = {clock: threading.Barrier(3) for clock in (2, 6)}

    def life(slot: int) -> None:
        with cluster.join(slot) as job:
            table = job.table("counts", 50, dim=1, rule=perdure.Add())
            sampler = perdure.Sampler(job, 50, 2)
            for _ in job.epochs(1):
                for numbers in sampler:
                    if slot < 2 and job.now in gates:
                        gates[job.now].wait()
                        gates[job.now].wait()
                    table.inc(numbers, np.ones((len(numbers), 1)))
                    counted[slot].append(numbers)
                    job.clock()

    threads = [threading.Thread(target=life, args=(slot,)) for slot in (0, 1)]
    for thread in threads:
        thread.start()
    for clock, slots in ((2, 3), (6, 2)):
        gates[clock].wait()
        command = [str(ROOT / "bin" / "perdure"), "scale", "--run", str(tmp_path / "run"), str(slots)]
        subprocess.run([*command, "--at", str(clock + 2)], check=True, capture_output=True)
        if slots == 3:
            threads.append(threading.Thread(target=life, args=(2,)))
            threads[-1].start()
        gates[clock].wait()
    for thread in threads:
        thread.join()
    assert cluster.owner.process.wait() == 0
    clocks = plainly(50, 2, [2] * 4 + [3] * 4 + [2])
    clocks = clocks[: next(i + 1 for i in range(len(clocks)) if sum(len(r) for c in clocks[: i + 1] for r in c) == 50)]
    assert counted[0] == [of[0] for of in clocks]
    assert counted[1] == [of[1] for of in clocks]
    assert counted[2] == [of[2] for of in clocks if len(of) == 3]
