"""Programs, agents, servers and coordinators die at random, and the model stays the same.

PERDURE_STORMS is the number of runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import SMALL

STORMS = int(os.environ.get("PERDURE_STORMS", "1"))
FIRST = int(os.environ.get("PERDURE_STORM_SEED", "1"))

#: Linear regression on data determined by the slot, the clock and a number in the slot's state.
TRAIN = """
import sys, time
import numpy as np, perdure
with perdure.join() as job:
    table = job.table("w", rows=8, dim=4, rule=perdure.Adam(0.05), combine="weighted")
    truth = np.arange(32, dtype=np.float32).reshape(8, 4) / 16
    out = job.empty((8, 4))

    def step(clock):
        time.sleep(0.01)
        kept = job.load_state()
        n = int(kept or b"0")
        assert n == clock * (clock - 1) // 2, (n, clock)  # each clock once
        rng = np.random.default_rng([clock, job.slot, n])
        x = rng.standard_normal((16, 8), dtype=np.float32)
        w = table.get_run(0, 8, out=out)
        table.inc_run(0, x.T @ (x @ w - x @ truth) / 16)
        table.weigh(1 + clock % 3)
        job.save_state(b"%d" % (n + clock))

    job.run(step)
"""


def agents_of(program: Path) -> list[int]:
    """Return the agents whose parents run a program."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[1:2] == [b"agent"]:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if str(program).encode() in Path("/proc", parent, "cmdline").read_bytes():
                    found.append(int(folder.name))
        except (OSError, IndexError):
            continue  # the process has ended
    return sorted(found)


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread while the block runs. Its argument is set when the block has ended."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def agents_die(program: Path, rng: random.Random | None, most: int = 4) -> Iterator[None]:
    """Kill agents of a program at random moments while the block runs.

    Args:
        rng: The source of random numbers. None kills no agent.
        most: The max number of kills. A job ends if a program fails five times without progress.
    """

    def kill(over: threading.Event) -> None:
        killed = 0
        while rng is not None and killed < most and not over.wait(rng.uniform(0.2, 1.0)):
            for agent in rng.sample(agents_of(program), k=1) if agents_of(program) else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent, 9)
                    killed += 1

    with meanwhile(kill):
        yield


def model_of(folder: Path, name: str, program: str, flags: list[str], kill_agents: random.Random | None) -> bytes:
    """Train in two slots, and return the model's file."""
    script = folder / f"{name}.py"
    script.write_text(program)
    command = [os.environ["PERDURE_BINARY"], "up", "--workers=2", "--servers=2", *SMALL, "-q", *flags]
    with agents_die(script, kill_agents):
        done = subprocess.run(
            [*command, "--exec", f"{sys.executable} {script}", "--out", str(folder / name)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return (folder / name / "model.safetensors").read_bytes()


def train(folder: Path, name: str, recovery: str, faults: list[str], kill_agents: random.Random | None) -> str:
    """Train in two slots, and return the hash of the model."""
    flags = ["--clocks=150", f"--recovery={recovery}", *faults]
    return hashlib.sha256(model_of(folder, name, TRAIN, flags, kill_agents)).hexdigest()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
def test_storm(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    recovery = rng.choice(["resend:20", "resend:auto", "chain:2", "stateless"])
    kinds = ["worker:0", "worker:1", "server:0", "server:1", "coordinator"]
    if recovery == "chain:2":  # a second server must not die before the first one is replaced
        kinds.remove("server:1")
    faults = [f"--fault=kill:{rng.choice(kinds)}@clock:{rng.randrange(1, 145)}" for _ in range(6)]
    calm = train(tmp_path, "calm", recovery, [], None)
    storm = train(tmp_path, "storm", recovery, faults, rng)
    assert calm == storm, f"seed {seed}: {recovery} {faults}"
