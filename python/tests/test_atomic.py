"""Atomic clocks: programs that continue from saved random state train on each sample exactly once.

PERDURE_STORMS is the number of runs.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL
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
    return counts_of(model_of(folder, "count", COUNT, flags, rng))


def counts_of(model: bytes) -> list[int]:
    """Return how often each sample was used, from a model file."""
    header = 8 + int.from_bytes(model[:8], "little")
    first, last = json.loads(model[8:header])["seen"]["data_offsets"]
    return [int(n) for n in np.frombuffer(model[header + first : header + last], np.float32)]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
@pytest.mark.parametrize("model", ["asp", "ssp:3"])
def test_each_sample_once(tmp_path: Path, model: str, seed: int) -> None:
    rng = random.Random(f"atomic {model} {seed}")
    recovery = rng.choice(
        ["resend:20", "resend:auto", "checkpoint:10", "chain:2", "chain:2,checkpoint:10", "stateless"]
    )
    faults = []
    for clock in sorted(rng.sample(range(3, 85, 2), k=6)):  # one server has more of the dead worker
        dies = rng.randrange(2)
        faults += [f"--fault=freeze:server:{1 - dies}@clock:{clock}+300ms"]
        faults += [f"--fault=kill:worker:{dies}@clock:{clock},150ms"]
    faults += [f"--fault=kill:{rng.choice(['server:0', 'coordinator'])}@clock:{rng.randrange(2, 85)}"]
    seen = count(tmp_path, model, recovery, faults, rng)
    assert seen == [EPOCHS] * SAMPLES, (recovery, faults)


#: At clock 60 of slot 0, while slot 1 is far behind, the whole run dies.
ENDS = """
if job.slot == 1:
    time.sleep(0.016)
elif clock == 60 and not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    os.kill(int(os.environ["PERDURE_TEST_RUN"]), signal.SIGKILL)
    time.sleep(60)
"""


@pytest.mark.parametrize("recovery", ["checkpoint:10", "resend:20", "stateless"])
def test_resumes(tmp_path: Path, recovery: str) -> None:
    """A run that died is resumed: each slot continues with its own clock, and each sample counts once an epoch."""
    program = COUNT.replace("import pickle, sys", "import os, pickle, signal, sys")
    lines = [" " * 8 + line for line in ENDS.strip().splitlines()]
    (tmp_path / "train.py").write_text(program.replace("        table.get(ids)\n", "\n".join(lines) + "\n"))
    clocks = EPOCHS * SAMPLES // 2 // BATCH
    up = ["exec", os.environ["PERDURE_BINARY"], "up", "-q", f"--out={tmp_path}/run"]
    up += ["--workers=2", "--servers=2", f"--clocks={clocks}", "--consistency=asp", "--atomic-clocks", *SMALL]
    up += [f"--recovery={recovery}", f"--exec='{sys.executable} {tmp_path}/train.py {tmp_path}/died'"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    shell = ["sh", "-c", "export PERDURE_TEST_RUN=$$; " + " ".join(up)]
    died = subprocess.run(shell, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert died.returncode == -9, died.stderr
    resume = [os.environ["PERDURE_BINARY"], "up", "-q", f"--resume={tmp_path}/run", f"--out={tmp_path}/next"]
    resume += [f"--exec={sys.executable} {tmp_path}/train.py {tmp_path}/died"]
    done = subprocess.run(resume, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert counts_of((tmp_path / "next" / "model.safetensors").read_bytes()) == [EPOCHS] * SAMPLES
