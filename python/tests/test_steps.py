"""The agent is killed at each call of a program, and the replacement process reaches the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Cluster

import perdure
from perdure import _agent

#: The agent is killed at every n-th call only, since each kill needs its own job.
STRIDE = 3


class Killing:
    """Kills the agent before the call with a given number, or after its reply."""

    def __init__(self, at: int, behind: bool) -> None:
        self.left, self.behind = at, behind
        self.call = _agent.Agent.call

    def __call__(self, agent: _agent.Agent, *args: object, **named: object) -> _agent.Reply:
        self.left -= 1
        if self.left == 0 and not self.behind:
            agent.process.kill()
            agent.process.wait()
        reply = self.call(agent, *args, **named)  # type: ignore[arg-type]
        if self.left == 0:
            agent.process.kill()
            agent.process.wait()
        return reply


def work(cluster: Cluster) -> list[list[float]]:
    """Do the rest of three clocks with calls of many kinds. Each update saves the next clock as state."""
    job = cluster.join(0)
    try:
        table = job.table("w", rows=4, dim=2, rule=perdure.Momentum(0.5, 0.9))
        lent = job.table("v", rows=4, dim=2, rule=perdure.SGD(0.5))
        kept = job.load_state()
        assert job.now == (int(kept) if kept is not None else 0)
        while job.now < 3:
            now = job.now
            table.prefetch([0, 1])
            read = table.get_run(0, 4)
            table.inc([1, 3], read[[1, 3]] + np.float32(now + 1))
            table.inc_run(0, np.ones((4, 2)))
            lent.deltas()[...] = now + 1
            table.flush()
            job.save_state(b"%d" % (now + 1))
            job.clock()
        job.settle()
        return np.concatenate([table.get_run(0, 4), lent.get_run(0, 4)]).tolist()
    finally:
        job.close()


@pytest.mark.parametrize("behind", [False, True])
def test_agent_is_killed_at_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    rows: list[list[float]] = []
    at = 0
    while True:
        cluster = Cluster(tmp_path / str(at), "--workers", "1", "--servers", "1", "--clocks", "9")
        try:
            killing = Killing(at, behind)
            with monkeypatch.context() as changed:
                changed.setattr(_agent.Agent, "call", lambda *args, killing=killing, **named: killing(*args, **named))
                try:
                    done = work(cluster)
                except perdure.AgentDied:
                    done = work(cluster)
        finally:
            cluster.end()
        if at == 0:
            rows = done
            assert rows[0] != rows[1]
        assert done == rows, f"killed at call {at}"
        if at > 0 and killing.left > 0:
            break  # the program makes fewer calls
        at += STRIDE if at else 1 + behind
    assert at > 30
