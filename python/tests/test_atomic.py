"""Atomic clocks: programs that continue from saved random state train on each sample exactly once.

PERDURE_STORMS is the number of runs.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from test_storms import FIRST, STORMS, model_of

EPOCHS, SAMPLES, BATCH = 3, 480, 8

#: Each slot shuffles its samples again in each epoch. Its position and random generator are in its saved state only.
#: The rows count how often each sample was used.
COUNT = f"""
import pickle, sys, time
import numpy as np, perdure
with perdure.join() as job:
    table = job.table("seen", rows={SAMPLES}, dim=1, rule=perdure.Add())
    mine = np.arange(job.slot, {SAMPLES}, 2)

    def step(clock):
        kept = job.load_state()
        rng, order, at, done = pickle.loads(kept) if kept else (np.random.default_rng(job.slot), mine[:0], 0, -1)
        assert done == clock - 1, (done, clock)
        if at == len(order):
            order, at = rng.permutation(mine), 0
        ids = order[at : at + {BATCH}]
        table.get(ids)
        time.sleep(0.002 + 0.006 * rng.random())
        table.inc(ids, np.ones((len(ids), 1), np.float32))
        job.save_state(pickle.dumps((rng, order, at + {BATCH}, clock)))

    job.run(step)
"""


def count(folder: Path, model: str, recovery: str, faults: list[str], rng: random.Random) -> list[int]:
    """Count how often each sample was used."""
    clocks = EPOCHS * SAMPLES // 2 // BATCH
    flags = [f"--clocks={clocks}", f"--recovery={recovery}", f"--consistency={model}", "--atomic-clocks", *faults]
    model_file = model_of(folder, "count", COUNT, flags, rng)
    header = 8 + int.from_bytes(model_file[:8], "little")
    first, last = json.loads(model_file[8:header])["seen"]["data_offsets"]
    return [int(n) for n in np.frombuffer(model_file[header + first : header + last], np.float32)]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
@pytest.mark.parametrize("model", ["asp", "ssp:3"])
def test_each_sample_once(tmp_path: Path, model: str, seed: int) -> None:
    rng = random.Random(f"atomic {model} {seed}")
    recovery = rng.choice(["resend:20", "resend:auto", "checkpoint:10,async", "chain:2", "stateless"])
    faults = []
    for clock in sorted(rng.sample(range(3, 85, 2), k=6)):  # one server has more of the dead worker
        dies = rng.randrange(2)
        faults += [f"--fault=freeze:server:{1 - dies}@clock:{clock}+300ms"]
        faults += [f"--fault=kill:worker:{dies}@clock:{clock},150ms"]
    faults += [f"--fault=kill:{rng.choice(['server:0', 'coordinator'])}@clock:{rng.randrange(2, 85)}"]
    seen = count(tmp_path, model, recovery, faults, rng)
    assert seen == [EPOCHS] * SAMPLES, (recovery, faults)
