"""Programs that request the same slot, and jobs that cannot be reached."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
from conftest import Cluster

import perdure


def test_two_programs_in_a_slot(cluster: Cluster) -> None:
    """The second program is rejected while the first one lives, and the first one continues."""
    first = cluster.join(0)
    table = first.table("w", rows=4, dim=2, rule=perdure.Add())
    where = (cluster.owner.coordinator, cluster.owner.secret_file)
    with pytest.raises(perdure.PerdureError, match=r"runs as worker:0$") as raised:
        perdure.join(*where, slot=0, patience=0.5)
    assert "\n" not in str(raised.value)
    table.inc([1], [[5, 5]])
    assert first.clock() == 1
    first.close()
    second = perdure.join(*where, slot=0)  # the slot is free now
    assert second.now == 1
    second.close()


def refusal_to_join(where: str) -> str:
    """Return the one-line error of a program with a patience of half a second, which must arrive in time."""
    begun = time.monotonic()
    with pytest.raises(perdure.PerdureError) as raised:
        perdure.join(where, patience=0.5)
    assert time.monotonic() - begun < 15
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_no_coordinator() -> None:
    """After the given patience, one line says what happened and what to check."""
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        said = refusal_to_join(where)
        assert time.monotonic() - begun > 0.4
        assert f"join the job at {where}: " in said
        assert said.endswith(
            "connection refused; no process listens there: check that the coordinator is running, "
            "and that this is its address and port"
        )


def test_other_program_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as caller:
                        caller.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + bytes(64))

        serving = threading.Thread(target=serve)
        serving.start()
        said = refusal_to_join(f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert "another program" in said or "closes the connection" in said


def test_nothing_comes_back() -> None:
    """No answer, as behind a firewall that drops packets: here the accept queue is full."""
    with contextlib.ExitStack() as open_:
        server = open_.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            caller = open_.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(server.getsockname())
        said = refusal_to_join(f"127.0.0.1:{server.getsockname()[1]}")
    assert "i/o timeout; no reply: check the address, that the machine is up, and that no firewall" in said


@pytest.mark.parametrize("where", ["host", "host:", "host:port", ":7000", "0.0.0.0:7000"])
def test_no_address(where: str) -> None:
    """An invalid address is rejected without waiting."""
    with pytest.raises(perdure.UsageError, match=r"write HOST:PORT|means every address") as raised:
        perdure.join(where, patience=600)
    assert "\n" not in str(raised.value)


def test_other_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Another run's secret, no secret and an invalid file are rejected immediately, despite a patience of a minute."""
    where = cluster.owner.coordinator
    other, words = tmp_path / "other", tmp_path / "words"
    other.write_text("ab" * 32 + "\n")
    words.write_text("open sesame\n")
    for file in (other, words):
        file.chmod(0o600)
    for secret, kind, said in (
        (
            str(other),
            perdure.Refused,
            "belongs to another run",
        ),
        ("", perdure.Refused, "the secret of this worker is missing; set PERDURE_SECRET_FILE"),
        (str(words), perdure.UsageError, "does not contain a run's secret, a line of 64 hexadecimal digits"),
        (str(tmp_path / "none"), perdure.UsageError, "the run's secret: .*none: no such file"),
    ):
        with pytest.raises(kind, match=said) as raised:
            perdure.join(where, secret, patience=600)
        assert "\n" not in str(raised.value)


def test_job_is_gone(tmp_path: Path) -> None:
    """A call that waits for unreachable servers raises Lost."""
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "50")
    job = perdure.join(cluster.owner.coordinator, cluster.owner.secret_file, slot=0, lost_after=1)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    cluster.owner.process.kill()  # all of the job's processes end with it
    cluster.owner.process.wait()
    with pytest.raises(perdure.Lost, match=r"for 1s from its coordinator at .* any of its 1 servers") as raised:
        while True:
            table.forget()
            table.get([1])
    assert "\n" not in str(raised.value)
    job.close()
