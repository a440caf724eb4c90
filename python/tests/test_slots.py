"""Programs that want the same slot, and jobs that cannot be reached."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from conftest import Cluster

import perdure


def test_two_programs_in_a_slot(cluster: Cluster) -> None:
    """The second is not let in as long as the first lives, and the first goes on."""
    first = cluster.join(0)
    table = first.table("w", rows=4, dim=2, rule=perdure.Add())
    where = (cluster.owner.coordinator, cluster.owner.secret_file)
    with pytest.raises(perdure.PerdureError, match=r"worker:0 is taken$") as raised:
        perdure.join(*where, slot=0, patience=0.5)
    assert "\n" not in str(raised.value)
    table.inc([1], [[5, 5]])
    assert first.clock() == 1
    first.close()
    second = perdure.join(*where, slot=0)  # now it is free
    assert second.now == 1
    second.close()


def test_no_coordinator() -> None:
    """It is looked for as long as was said; then a line says what to look at."""
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(perdure.PerdureError, match=rf"join the job at {where}: .*connection refused$") as raised:
            perdure.join(where, patience=0.5)
        assert 0.4 < time.monotonic() - begun < 15
    assert "\n" not in str(raised.value)


def test_job_is_gone(tmp_path: Path) -> None:
    """A call that waits for servers which nobody hears any more ends with Lost."""
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "50")
    job = perdure.join(cluster.owner.coordinator, cluster.owner.secret_file, slot=0, lost_after=1)
    table = job.table("w", rows=4, dim=2, rule=perdure.Add())
    cluster.owner.process.kill()  # with which all of its processes end
    cluster.owner.process.wait()
    with pytest.raises(perdure.Lost, match=r"for 1s neither its coordinator at .* nor any of its 1 servers") as raised:
        while True:
            table.forget()
            table.get([1])
    assert "\n" not in str(raised.value)
    job.close()
