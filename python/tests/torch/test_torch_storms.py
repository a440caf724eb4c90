"""Learners, agents, servers and coordinators die at random; the model stays the same, and each sample counts once.

PERDURE_STORMS is the number of storms, and PERDURE_STORM_SEED the seed of the first one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

from test_storms import FIRST, STORMS, agents_die
from test_torch import launch

CALM: dict[str, list[str]] = {}  # the models trained without a storm, by method


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
@pytest.mark.parametrize("how", ["parallel", "own", "diloco", "drafts", "overlap", "mix", "int8", "2bit", "both"])
def test_storm(tmp_path: Path, how: str, seed: int) -> None:
    rng = random.Random(f"{how} {seed}")
    recoveries = ["resend:20", "resend:auto", "checkpoint:10", "chain:2", "stateless"]
    if how == "own":  # needs checkpoints
        recoveries = ["resend:20", "resend:auto", "checkpoint:10", "chain:2,checkpoint:10"]
    recovery = rng.choice(recoveries)
    kinds = ["worker:0", "worker:0", "worker:1", "worker:1", "server:0", "server:1", "coordinator"]
    if recovery.startswith("chain:2"):  # a second server must not die before the first one is replaced
        kinds.remove("server:1")
    faults = [f"--fault=kill:{rng.choice(kinds)}@clock:{rng.randrange(2, 60)}" for _ in range(4 if how == "own" else 6)]
    if how not in CALM:
        CALM[how] = launch(tmp_path, "calm", how)
    with agents_die(tmp_path / "train.py", rng):
        assert launch(tmp_path, "storm", how, "--recovery", recovery, *faults) == CALM[how], (recovery, faults)
