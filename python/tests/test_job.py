from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Cluster

import perdure


def test_rows_of_dense_tables(job: perdure.Job) -> None:
    table = job.table("w", rows=100, dim=3, rule=perdure.SGD(0.5))
    assert (table.name, table.rows, table.dim) == ("w", 100, 3)
    table.inc([7, 2, 7], np.arange(9).reshape(3, 3))
    table.inc_run(10, np.ones(6, np.float32))
    assert job.clock() == 1
    assert table.get([2, 7]).tolist() == [[-1.5, -2.0, -2.5], [-3.0, -4.0, -5.0]]
    assert table.get_run(9, 4).tolist() == [[0] * 3, [-0.5] * 3, [-0.5] * 3, [0] * 3]
    assert table.get([]).shape == (0, 3)


def test_shared_memory(job: perdure.Job) -> None:
    table = job.table("w", rows=1000, dim=8, rule=perdure.Add())
    delta, out = job.empty((1000, 8)), job.empty((1000, 8))
    delta[...] = np.arange(8000).reshape(1000, 8)
    table.inc_run(0, delta)
    job.clock()
    assert table.get_run(0, 1000, out=out) is out
    assert (out == delta).all()
    part = out[100:200]  # views of shared arrays are shared
    part[...] = -1
    table.get_run(500, 100, out=part)
    assert (out[100:200] == delta[500:600]).all()
    assert (out[200:] == delta[200:]).all()
    across = np.zeros((8, 1000), np.float32).T  # arrays that are not contiguous are copied
    table.get_run(0, 1000, out=across)
    assert (across == delta).all()
    table.inc_run(0, across[::-1])
    job.clock()
    assert (table.get_run(0, 1000) == delta + delta[::-1]).all()


def test_rows_of_sparse_tables(job: perdure.Job) -> None:
    table = job.table("s", dim=2, rule=perdure.Adagrad(0.1), init="uniform", scale=0.5)
    ids = np.array([2**63 + 5, 3, 2**64 - 1], np.uint64)
    before = table.get(ids)
    assert (abs(before) <= 0.5).all()
    assert before.any()
    table.prefetch(ids)
    table.inc(ids, np.ones((3, 2)))
    table.flush()
    job.clock()
    job.settle()
    table.forget()
    assert np.allclose(table.get(ids), before - 0.1)
    assert sorted(table.stored_rows().view(np.uint64).tolist()) == sorted(ids.tolist())


def test_combine(job: perdure.Job) -> None:
    table = job.table("c", rows=2, dim=1, rule=perdure.Nesterov(0.7, 0.9), combine="weighted")
    table.inc([1], [[1.0]])
    table.weigh(3.0)
    job.clock()
    assert table.get([0, 1]).reshape(-1).tolist() == pytest.approx([0, -0.7 * 1.9])


def test_state(job: perdure.Job) -> None:
    assert job.load_state() is None
    for state in (b"position 7", b"", bytes(range(256)) * 10_000):
        job.save_state(state)
        job.clock()
        assert job.load_state() == state
    assert job.load_saved().clock == 2


def test_run_and_finish(tmp_path: Path) -> None:
    clocks = []
    with perdure.start(clocks=5, out=tmp_path / "run", args=SMALL) as job:
        assert (job.slot, job.now, job.end, job.share) == (0, 0, 5, (0, 1))
        table = job.table("w", rows=4, dim=1, rule=perdure.Add())

        def step(clock: int) -> None:
            clocks.append(clock)
            table.inc([0], [[1]])
            job.report(train_loss=1 / (clock + 1), samples=3)

        job.run(step)
    assert clocks == list(range(5))
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_early_end(tmp_path: Path) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        table = job.table("w", rows=4, dim=1, rule=perdure.Add())
        for _ in range(3):
            table.inc([0], [[1]])
            job.clock()
    assert (tmp_path / "run" / "summary.json").exists()


def test_empty_requests(tmp_path: Path) -> None:
    with perdure.start(clocks=3, out=tmp_path / "run", args=SMALL) as job:  # no memory is shared yet
        dense, sparse = job.table("w", rows=4, dim=1, rule=perdure.Add()), job.table("s", dim=1, rule=perdure.Add())
        assert dense.get([]).shape == (0, 1)
        assert sparse.stored_rows().size == 0
        dense.inc([], np.empty((0, 1)))
        job.save_state(b"")
        job.clock()
        assert job.load_state() == b""


def test_memory_is_given_back(job: perdure.Job) -> None:
    kept = [job.empty(1 << 16)[100:] for _ in range(50)]
    assert len(job._regions._sorted) >= 50
    kept.clear()
    table = job.table("w", rows=4, dim=1 << 14, rule=perdure.Add())
    table.inc_run(0, np.ones((4, 1 << 14)))
    job.clock()
    for _ in range(50):  # new arrays at the addresses of deleted ones are not shared
        assert (table.get_run(0, 4) == 1).all()
    job.empty(1000)
    assert len(job._regions._sorted) < 5


def test_unfinished(tmp_path: Path) -> None:
    """An error in the block propagates immediately, and the job is stopped."""
    with pytest.raises(ZeroDivisionError), perdure.start(out=tmp_path / "run", args=SMALL) as job:
        job.table("w", rows=4, dim=1, rule=perdure.Add())
        job.clock()
        1 // 0  # noqa: B018
    assert job._owner is not None
    assert job._owner.process.returncode is not None
    perdure.start(out=tmp_path / "another").close()


def test_resumes(tmp_path: Path) -> None:
    """An interrupted program ends with a last checkpoint, and another one continues with the settings of its run."""
    first, second = tmp_path / "first", tmp_path / "second"

    def add(job: perdure.Job, clock: int) -> None:
        table = job.table("w", rows=4, dim=1, rule=perdure.Add())
        while job.now < clock:
            table.inc([1], [[1]])
            job.clock()
        assert table.get([1]) == clock

    settings = {"servers": 1, "recovery": "checkpoint:1000", "consistency": "ssp:3", "clocks": 50}
    with pytest.raises(KeyboardInterrupt), perdure.start(out=first, args=SMALL, **settings) as job:
        add(job, 7)
        raise KeyboardInterrupt
    with perdure.start(servers=2, out=second, args=["--resume", str(first)]) as job:
        assert job.now == 7
        add(job, 9)
    run = json.loads((second / "run.json").read_text())["job"]
    assert {name: run[name] for name in settings} == settings | {"servers": 2}
    with pytest.raises(perdure.UsageError, match="--consistency cannot be changed with --resume"):
        perdure.start(consistency="bsp", out=tmp_path / "third", args=[f"--resume={first}"])


def test_ends_without_checkpoint(tmp_path: Path) -> None:
    """A job that could save only with its program's state does not wait for a checkpoint when the program fails."""
    began = time.monotonic()
    with (
        pytest.raises(ZeroDivisionError),
        perdure.start(recovery="resend:5", out=tmp_path / "run", args=[*SMALL, "--grace=100s"]) as job,
    ):
        job.table("w", rows=4, dim=1, rule=perdure.Set(), combine="sum", transient=True)
        for _ in range(20):
            job.clock()
        1 // 0  # noqa: B018
    assert time.monotonic() - began < 90


def test_end_job(tmp_path: Path) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        table = job.table("w", rows=4, dim=1, rule=perdure.Add())

        def step(clock: int) -> None:
            table.inc([0], [[1]])
            if clock == 4:
                job.end_job()

        job.run(step)
        assert job.ended


def test_threads(job: perdure.Job) -> None:
    table = job.table("w", rows=64, dim=4, rule=perdure.Add())
    wrong: list[object] = []

    def work(row: int) -> None:
        try:
            for _ in range(20):
                table.inc([row], np.full((1, 4), row))
                if not np.isfinite(table.get([row])).all():
                    wrong.append(row)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.clock()
    assert not wrong
    assert table.get_run(0, 16)[:, 0].tolist() == [20 * row for row in range(16)]


def test_waits_without_the_interpreter(cluster: Cluster) -> None:
    """A waiting call does not block other threads: here, one of them ends the wait."""
    job, other = cluster.join(0), cluster.join(1)
    tables = [of.table("w", rows=8, dim=4, rule=perdure.Add()) for of in (job, other)]
    job.clock()
    read: list[perdure.job.Floats] = []
    waits = threading.Thread(target=lambda: read.append(tables[0].get_run(0, 8)))
    waits.start()
    for _ in range(20):  # during each call the other thread can run
        assert job.now == 1
    tables[1].inc_run(0, np.ones((8, 4)))
    other.clock()
    waits.join()
    assert (read[0] == 1).all()
    job.close()
    other.close()


def test_mistakes(job: perdure.Job) -> None:
    table = job.table("w", rows=8, dim=4, rule=perdure.Adam(1e-3))
    for what, call in {
        "rows 0 to 7": lambda: table.get([8]),
        "list of integers": lambda: table.get([0.5]),
        "has 4 values": lambda: table.inc([1], np.zeros((1, 3))),
        "2 rows of 4 values": lambda: table.inc([1, 2], np.zeros((1, 4))),
        "must be float32": lambda: table.inc([1], np.zeros((1, 4), complex)),
        "with room for 2 rows": lambda: table.get([1, 2], out=np.zeros((1, 4), np.float32)),
        "out is float64": lambda: table.get([1], out=np.zeros((1, 4))),
        "unknown measure loss": lambda: job.report(loss=1.0),
        "already exists with different": lambda: job.table("w", rows=9, dim=4, rule=perdure.Adam(1e-3)),
        "not a finite number > 0": lambda: job.table("v", rows=9, dim=4, rule=perdure.Adam(-1)),
        "weighted": lambda: table.weigh(1.0),
        'unknown field "inti"': lambda: job.table("v", rows=9, dim=4, rule=perdure.Add(), inti="normal"),
        "takes no scale": lambda: job.table("v", rows=9, dim=4, rule=perdure.Add(), scale=0.5),
    }.items():
        with pytest.raises(perdure.UsageError, match=what) as raised:
            call()
        assert "\n" not in str(raised.value)
        assert "perdure:" not in str(raised.value)
    with pytest.raises(perdure.NonFinite, match="row 3 of table w is NaN"):
        table.inc([2, 3], [[0, 0, 0, 0], [0, float("nan"), 0, 0]])
    job.clock()
    assert not table.get_run(0, 8).any()
    with pytest.raises(perdure.UsageError, match="servers"):
        perdure.start(servers=0)


def test_closed(tmp_path: Path) -> None:
    job = perdure.start(clocks=3, out=tmp_path / "run")
    job.finish()
    job.close()
    job.close()
    with pytest.raises(perdure.UsageError, match="closed"):
        job.clock()


def test_deltas(job: perdure.Job) -> None:
    table, other = (job.table(name, rows=100, dim=3, rule=perdure.SGD(0.5)) for name in "wv")
    delta, rest = table.deltas(10, 20), other.deltas()
    assert (delta.shape, rest.shape) == ((20, 3), (100, 3))
    delta[...] = np.arange(60).reshape(20, 3)
    rest[...] = 2
    table.inc([5], [[2, 2, 2]])
    with pytest.raises(perdure.UsageError, match="Deltas"):
        table.inc([10], [[2, 2, 2]])
    delta[3, 1] = np.nan
    with pytest.raises(perdure.NonFinite, match="row 13 of table w"):
        job.clock()
    delta[3, 1] = 10  # the array still belongs to the program
    other.flush()
    assert (delta.flags.writeable, rest.flags.writeable) == (True, False)
    assert job.clock() == 1
    with pytest.raises(ValueError, match="read-only"):
        delta[0] = 1
    want = np.zeros((100, 3))
    want[10:30], want[5] = np.arange(60).reshape(20, 3), 2
    assert (table.get_run(0, 100) == -0.5 * want).all()
    assert (other.get_run(0, 100) == -1).all()
    sparse = job.table("s", dim=3, rule=perdure.Add())
    with pytest.raises(perdure.UsageError, match="sparse"):
        sparse.deltas(0, 1)
    with pytest.raises(perdure.UsageError, match="rows 0 to 99"):
        table.deltas(90, 11)


def test_deltas_through_kills(tmp_path: Path) -> None:
    faults = [f"--fault=kill:server:{i % 2}@clock:{20 + 30 * i}" for i in range(4)]
    args = [*SMALL, *faults]
    with perdure.start(recovery="resend:30", out=tmp_path / "run", args=args) as job:
        table = job.table("w", rows=300, dim=64, rule=perdure.Add())
        for clock in range(150):
            for first in range(0, 300, 3):  # more pieces than the cache of mappings holds
                table.deltas(first, 3)[...] = clock + first
            job.clock()
        want = np.repeat(150 * 149 / 2 + 150 * np.arange(0, 300, 3), 3)
        assert (table.get_run(0, 300) == want[:, None]).all()


def test_users_see_a_programs_warnings(tmp_path: Path) -> None:
    """A warning is one line of the events, and a program can write ten."""
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "1")
    job = cluster.join(0)
    table = job.table("w", rows=2, dim=1, rule=perdure.SGD(0.5))
    for i in range(12):
        with pytest.warns(RuntimeWarning, match=f"strange {i}"):
            job._warn(f"strange {i}\n\x1b[2J and more", stacklevel=2)
    table.inc([0], [[1.0]])
    job.clock()
    job.finish()
    job.close()
    assert cluster.owner.process.wait() == 0
    events = [json.loads(of) for of in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    found = [(of["target"], of["text"]) for of in events if of["kind"] == "warning"]
    assert found == [("worker:0", f"slot 0 warns: strange {i} [2J and more") for i in range(10)]
