"""Programs, agents and servers that die, and calls that time out or are interrupted."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Cluster

import perdure
from perdure.errors import EXIT_ROLLED_BACK


def test_timeout(cluster: Cluster) -> None:
    first, second = cluster.join(0), cluster.join(1)
    tables = [job.table("w", rows=4, dim=2, rule=perdure.Add()) for job in (first, second)]
    tables[0].inc_run(0, np.ones((4, 2)))
    first.clock()
    out = first.empty((4, 2))
    out[...] = 7
    with pytest.raises(TimeoutError):
        tables[0].get_run(0, 4, out=out, timeout=0.05)  # the other worker has not ended its clock
    second.clock()
    assert (out == 7).all()  # out is not written after the timeout
    assert (tables[0].get_run(0, 4, timeout=10) == 1).all()
    for job in (first, second):
        job.close()


class Told(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Told])
def test_interrupt(cluster: Cluster, raised: type[BaseException]) -> None:
    first, second = cluster.join(0), cluster.join(1)
    table = first.table("w", rows=4, dim=2, rule=perdure.Add())
    first.clock()

    def tell(*_: object) -> None:
        raise raised

    handler = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(raised):
            table.get([1])
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert first.now == 1
    for job in (first, second):
        job.close()


def test_observer(cluster: Cluster) -> None:
    with perdure.join(cluster.owner.coordinator, cluster.owner.secret_file, observer=True) as job:
        assert job.slot < 0
        for what, said in ((job.end_job, "perdure stop"), (lambda: job.report(train_loss=1.0), "no slot to report")):
            with pytest.raises(perdure.UsageError, match=said):
                what()
        worker = cluster.join(0)
        for of in (worker, job):  # the observer is still connected and learns of the table
            assert of.table("w", rows=4, dim=2, rule=perdure.Add()).get([1]).tolist() == [[0, 0]]
        with pytest.raises(perdure.UsageError, match="observers"):
            worker.at(1)
        seen = job.table("w", rows=4, dim=2, rule=perdure.Add())
        assert seen.read([1, 2])[1:] == (0, 0)
        other = cluster.join(1)
        both = [slot.table("w", rows=4, dim=2, rule=perdure.Add()) for slot in (worker, other)]
        for slot, table in zip((worker, other), both, strict=True):
            table.inc([0], [[1.0, 0.0]])
            slot.clock()
        job.at(1)
        assert job.now == 1
        reading = seen.read()
        assert reading.values[0].tolist() == [2.0, 0.0]
        assert (reading.oldest, reading.newest, reading.mixed) == (1, 1, False)
        with pytest.raises(perdure.UsageError, match="invalid clock -1; clocks start at 0"):
            job.at(-1)
        worker.close()
        other.close()


def test_starts_quietly(tmp_path: Path) -> None:
    """The job's address does not depend on what `perdure up` prints."""
    for flag in ("-q", "--json"):
        with perdure.start(out=tmp_path / flag, args=[*SMALL, flag]) as job:
            assert job.slot == 0


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older program rejects the flag, and a newer one announces another protocol."""
    program = tmp_path / "another"
    monkeypatch.setenv("PERDURE_BINARY", str(program))
    older = "echo 'perdure: error: unknown flag --announce-fd' >&2; exit 80"
    newer = """for a; do case $a in --announce-fd=*) fd=${a#*=};; esac; done
echo '{"protocol": 99, "version": "9.0"}' > /dev/fd/$fd; exec sleep 1000"""
    for text, said in (
        (older, f"^{program} and this package have different versions; install the same version of both$"),
        (newer, rf"^{program} has version 9\.0 with protocol 99, but this package needs protocol \d+; install"),
    ):
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        with pytest.raises(perdure.UsageError, match=said):
            perdure.start(out=tmp_path / "run")


def test_a_job_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `perdure up` that hangs is killed at its deadline, and the error contains its last line."""
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\necho perdure: it waits\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setenv("PERDURE_BINARY", str(program))
    monkeypatch.setattr("perdure.job._Owner.patience", 0.5)
    with pytest.raises(perdure.UsageError, match=r"within 0\.5 s: it waits$"):
        perdure.start(out=tmp_path / "run")


def test_agent_dies(tmp_path: Path) -> None:
    job = perdure.start(out=tmp_path / "run", clocks=9, args=SMALL)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    job._agent.process.send_signal(signal.SIGKILL)
    with pytest.raises(perdure.AgentDied, match="code -9"):
        while True:
            table.get([1])
    with pytest.raises(perdure.AgentDied):
        job.clock()
    assert job._owner is not None
    job._owner.process.terminate()
    job._owner.process.wait()


def test_forked(job: perdure.Job) -> None:
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    pid = os.fork()
    if pid == 0:
        try:
            table.get([1])
        except perdure.Forked:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    table.get([1])


#: A program that works for some clocks, saves its position, and waits to be killed.
PROGRAM = """
import os, sys, perdure
job = perdure.join()
table = job.table("w", rows=4, dim=2, rule=perdure.Add())
print(job.now, job.load_state(), flush=True)
for clock in range(job.now, job.now + 3):
    table.inc_run(0, [[1, 1]] * 4)
    job.save_state(b"after %d" % clock)
    job.clock()
job.settle()  # what an agent still has to send dies with its program
if os.fork() > 0:  # else it is a loader of data, which has a copy of the agent's socket
    print("ready", flush=True)
os.read(0, 1)
"""


def test_program_dies(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "9")
    try:
        for now, state in ((0, "None"), (3, "b'after 2'"), (6, "b'after 5'")):
            program = cluster.program(PROGRAM)
            assert program.stdout is not None
            assert program.stdout.readline().split(None, 1) == [str(now), state + "\n"]
            assert program.stdout.readline() == "ready\n"
            program.kill()
            program.wait()
        job = cluster.join(0)
        assert job.now == 9
        assert (job.table("w", rows=4, dim=2, rule=perdure.Add()).get([0]) == 9).all()
        job.finish()
        job.close()
        assert cluster.owner.process.wait() == 0
    finally:
        cluster.end()


def test_job_ends_with_its_program(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, perdure\njob = perdure.start(out={str(tmp_path / 'run')!r})\n"
            "print(job._owner.process.pid, job._agent.process.pid, flush=True)\nos.read(0, 1)",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    files = [os.pidfd_open(pid) for pid in pids]
    program.kill()
    program.wait()
    for file in files:
        assert select.select([file], [], [], 20)[0], "a process lives on"
        os.close(file)


#: Linear regression on data that are determined by the slot's share of each clock.
TRAIN = """
import numpy as np, perdure
with perdure.join() as job:
    table = job.table("w", rows=8, dim=4, rule=perdure.Adam(0.05), combine="mean")
    truth = np.arange(32, dtype=np.float32).reshape(8, 4) / 16
    out = job.empty((8, 4))

    def step(clock):
        rng = np.random.default_rng([clock, job.slot])
        x = rng.standard_normal((16, 8), dtype=np.float32)
        w = table.get_run(0, 8, out=out)
        table.inc_run(0, x.T @ (x @ w - x @ truth) / 16)

    job.run(step)
"""


@pytest.mark.parametrize("recovery", ["resend:20", "chain:2"])
def test_same_model_through_kills(tmp_path: Path, recovery: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    kills = ("worker:0@clock:30", "server:0@clock:60", "worker:1@clock:90", "coordinator@clock:120")
    command = f"{os.environ['PERDURE_BINARY']} up --workers 2 --servers 2 --clocks 200 --recovery {recovery}".split()
    command += [*SMALL, "--exec", f"{sys.executable} {script}"]
    models = []
    for run, faults in (("calm", []), ("storm", [f"--fault=kill:{kill}" for kill in kills])):
        done = subprocess.run(
            [*command, "--out", str(tmp_path / run), *faults],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        models.append(hashlib.sha256((tmp_path / run / "model.safetensors").read_bytes()).hexdigest())
    events = (tmp_path / "storm" / "events.jsonl").read_text()
    assert events.count('"fault"') >= len(kills)
    assert models[0] == models[1]


def test_rolled_back(cluster: Cluster) -> None:
    """A program that a rollback ends has its own exit code, and runs its exit handlers."""
    program = "import atexit, perdure; atexit.register(print, 'ran'); job = perdure.join(); raise perdure.RolledBack"
    with cluster.program(program) as of:
        assert of.communicate(timeout=60)[0] == "ran\n"
    assert of.returncode == EXIT_ROLLED_BACK
