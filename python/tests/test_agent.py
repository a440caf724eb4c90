"""Finding the perdure program, and agents that fail or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from conftest import Cluster

import perdure
from perdure import _agent

#: The script that pip creates for the entry point `perdure`.
COMMAND = "#!{}\nimport sys\nfrom perdure.__main__ import main\nsys.exit(main())\n"


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def perdure_version(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "version"],
        env={"PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_program_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = script(tmp_path / "words", "")
    for path, said in ((tmp_path / "no", "No such file"), (tmp_path, "Permission denied"), (words, "Exec format")):
        monkeypatch.setenv("PERDURE_BINARY", str(path))
        with pytest.raises(perdure.UsageError, match=f"cannot be started: {said}"):
            perdure.start()
        done = perdure_version([sys.executable, "-m", "perdure"], PERDURE_BINARY=str(path))
        assert done.returncode == 2
        assert done.stderr.startswith(f"perdure: {path} cannot be started: {said}")
        assert done.stderr.count("\n") == 1


def test_command_of_the_package_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own command, first in PATH in a virtual environment, must not be taken for the program."""
    command = script(tmp_path / "bin" / "perdure", COMMAND.format(sys.executable))
    done = perdure_version([str(command)], PATH=str(command.parent))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("perdure: this package has no perdure program for this platform")
    program = tmp_path / "programs" / "perdure"
    program.parent.mkdir()
    program.symlink_to(os.environ["PERDURE_BINARY"])
    done = perdure_version([str(command)], PATH=f"{command.parent}:/nothing:{program.parent}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perdure ")
    done = perdure_version([str(command)], PERDURE_BINARY=str(command))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is this command itself" in done.stderr
    monkeypatch.delenv("PERDURE_BINARY")
    monkeypatch.setenv("PATH", str(command.parent))
    for begin in (perdure.start, lambda: perdure.join("host:7000")):
        with pytest.raises(perdure.UsageError, match="has no perdure program"):
            begin()


def test_other_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(_agent.socket, "SOCK_SEQPACKET")  # macOS does not support it
    for begin in (perdure.start, lambda: perdure.join("host:7000")):
        with pytest.raises(perdure.UsageError, match="not on darwin"):
            begin()


def test_other_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install if the program has no `perdure agent` or uses another protocol."""
    for code in (0, 2):
        program = script(tmp_path / "perdure", f"#!/bin/sh\nexit {code}\n")
        with monkeypatch.context() as changed:
            changed.setenv("PERDURE_BINARY", str(program))
            said = f"{program} exited with code {code} .* version"
            with pytest.raises(perdure.UsageError, match=said):
                perdure.join("127.0.0.1:1")
    monkeypatch.setattr(_agent, "PROTOCOL", 1)
    with pytest.raises(perdure.Refused, match="protocol 1"):
        perdure.join("127.0.0.1:1")


def test_version(job: perdure.Job) -> None:
    assert job.version


Waits = tuple[perdure.Job, perdure.Table]


class Told(TimeoutError):
    """Raised by a signal handler, so that it is not confused with a call's TimeoutError."""


def stop(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the agent with SIGSTOP and shorten the patience with it. From then on it can only be killed."""
    monkeypatch.setattr(_agent, "_PATIENCE", 0.2)
    monkeypatch.setattr(_agent, "PROMPT", 0.2)
    job._agent.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job._agent.process.pid, os.WSTOPPED | os.WNOWAIT)


def ended_by_kill(job: perdure.Job) -> bool:
    return job._agent.process.poll() == -signal.SIGKILL


@pytest.fixture
def waits(cluster: Cluster) -> Waits:
    """A job with a table whose reads block until another slot ends its clock."""
    job = cluster.join(0)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    job.clock()
    return job, table


def test_agent_stands_still(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with a timeout does not wait forever for a stopped agent, which writes nothing after the error."""
    job, table = waits
    stop(job, monkeypatch)
    with pytest.raises(perdure.AgentDied, match=r"did not answer within 0.2 s and was killed"):
        table.get([1], timeout=0.05)
    assert ended_by_kill(job)
    with pytest.raises(perdure.AgentDied, match="did not answer"):
        table.get([1])
    job.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Told])
def test_interrupt_while_agent_stands_still(
    waits: Waits, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, table = waits
    stop(job, monkeypatch)

    def tell(*_: object) -> None:
        raise raised

    handler = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # repeatedly, like a user who presses Ctrl-C several times
    try:
        with pytest.raises(raised):
            table.get([1])
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert job._agent.process.wait(timeout=10) == -signal.SIGKILL


def test_close_while_agent_stands_still(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = waits
    stop(job, monkeypatch)
    job.close()
    assert ended_by_kill(job)


def in_thread(what: Callable[[], object]) -> BaseException | None:
    """Make a call in another thread, and return the exception that it raises."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            what()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_new_thread_while_agent_stands_still(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    job, table = waits
    stop(job, monkeypatch)
    assert isinstance(in_thread(lambda: table.get([1], timeout=0.05)), perdure.AgentDied)
    assert ended_by_kill(job)


def test_closed_while_another_thread_calls(waits: Waits) -> None:
    """A waiting thread receives an error, and does not poll a closed socket forever."""
    job, table = waits
    begun = threading.Event()

    def get() -> None:
        table.prefetch([2])  # opens this thread's channel
        begun.set()
        table.get([1])

    raised: list[BaseException | None] = []
    waiting = threading.Thread(target=lambda: raised.append(in_thread(get)))
    waiting.start()
    begun.wait()
    job.close()
    waiting.join(20)
    assert isinstance(raised[0], perdure.PerdureError)
    with pytest.raises(perdure.UsageError, match="closed"):
        table.get([1])


class Interrupted(BaseException):
    """An exception raised at a chosen line of the program."""


def at_line(number: int, what: Callable[[], object], function: str = "") -> bool:
    """Run a function, and interrupt it at the given line executed in _agent.py or in one of its functions.

    Returns False if fewer lines were executed.
    """
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != _agent.__file__:
            return None
        if event == "line" and function in ("", frame.f_code.co_name):
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("timeout", [None, 0.0])
def test_interrupted_at_any_line(cluster: Cluster, timeout: float | None) -> None:
    """An interrupt before, during or after a call leaves the agent running, and the next call gets its own reply."""
    job, other = cluster.join(0), cluster.join(1)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    table.inc([1], [[1, 2]])
    job.clock()
    other.clock()
    assert table.get([1]).tolist() == [[1, 2]]
    if timeout is not None:
        job.clock()  # the next read blocks until the other slot ends its clock
    out = job.empty((1, 2))

    def get() -> None:
        with contextlib.suppress(TimeoutError):
            table.get([1], out=out, timeout=timeout)

    number, begun = 1, time.perf_counter()
    while at_line(number, get):
        out[...] = 7
        assert job.now == 1 + (timeout is not None)
        assert (out == 7).all()
        number += 1
    assert number > 20
    assert time.perf_counter() - begun < 5 * number / 2  # no call waited for a healthy agent's patience to expire
    assert job._agent.process.poll() is None
    other.clock()
    other.close()
    assert table.get([1]).tolist() == [[1, 2]]
    job.close()


def test_interrupted_cancellation(cluster: Cluster) -> None:
    """Interrupting the cancellation of a timed-out call at any line must not block the next cancellation."""
    job, other = cluster.join(0), cluster.join(1)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    job.clock()  # a read blocks until the other slot ends its clock
    out = job.empty((1, 2))

    def get() -> None:
        with pytest.raises(TimeoutError):
            table.get([1], out=out, timeout=0.0)

    def late(*_: object) -> None:
        raise AssertionError("a cancellation waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    try:
        number = 1
        while at_line(number, get, "_awaited"):
            get()
            number += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert number > 10
    other.close()
    job.close()


def test_forked_child_writes_nothing(job: perdure.Job) -> None:
    """A forked child must not write to the memory for copies, which it shares with the agent and the parent."""
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    table.inc([1], np.ones((1, 2)))
    job.save_state(b"the parent's")
    before = [lot.bytes.tobytes() for lot in job._spare]
    assert any(map(any, before))
    pid = os.fork()
    if pid == 0:
        refused = 0
        for what in (
            lambda: table.inc([3], np.full((1, 2), 5)),
            lambda: table.get([3]),
            lambda: table.prefetch([3]),
            lambda: job.save_state(b"the child's!"),
            lambda: job.empty(3),
            table.deltas,
            job.clock,
        ):
            try:
                what()
            except perdure.Forked:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert [lot.bytes.tobytes() for lot in job._spare] == before
    job.clock()
    assert table.get([1]).tolist() == [[1, 1]]
