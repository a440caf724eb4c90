"""How many steps asynchronous learners make while one of them is slow, frozen or dead, or while all servers are away.

Four learners train with ServerOptimizer. A step takes 50 ms, and the program sleeps most of it. The steps of learners 0
to 2 count, in a window that starts 10 s after the first step. Each case is compared with a run of these
three learners alone, in the same round.

    python missing.py --consistency asp --recovery chain:2 stateless --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import perdure
from perdure._agent import binary

STEP = 0.05  # seconds
BEFORE = 10  # seconds before the window
CASES: dict[str, tuple[int, list[str]]] = {  # learners, faults
    "alone": (3, []),
    "equal": (4, []),
    "slow": (4, []),
    "frozen": (4, ["freeze:worker:3@{at}s+{window}s"]),
    "dead": (4, ["kill:worker:3@{at}s+{window}s"]),
    "outage": (3, ["kill:server:0@{at}s+{window}s", "kill:server:1@{at}s+{window}s"]),
}


def learner(a: argparse.Namespace) -> None:
    """One learner. It writes the times of its steps in seconds since the Unix epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Linear(1024, a.parameters // 1024, bias=False)
    x = torch.randn(1, 1024)
    with perdure.start() as job:
        takes = STEP * (4 if a.case == "slow" and job.slot == 3 else 1)
        times: list[float] = []
        with perdure.ServerOptimizer(job, model, perdure.SGD(1e-3)) as p:
            job.await_slots()
            end = time.time() + BEFORE + a.window + 5
            while time.time() < end:
                until = time.monotonic() + takes
                model(x).mean().backward()
                time.sleep(max(0.0, until - time.monotonic()))
                p.step()
                p.zero_grad()
                times.append(time.time())
    Path(f"{a.out}.{job.slot}.{os.getpid()}").write_text(json.dumps(times))


def rate(a: argparse.Namespace, folder: Path, case: str, recovery: str) -> tuple[float, float]:
    """Run a case. Return the steps per second of a learner in the window, and in the 5 s before it."""
    learners, faults = CASES[case]
    out, run = folder / "times", folder / "run"
    execs = [sys.executable, __file__, "--learner", "--case", case, "--out", str(out)]
    execs += ["--window", str(a.window), "--parameters", str(a.parameters)]
    flags = [f"--workers={learners}", "--servers=2", "--clocks=1000000", f"--consistency={a.consistency}"]
    flags += [f"--recovery={recovery}", "--atomic-clocks", "--suspend-after=0s", f"--out={run}", "-q"]
    flags += ["--on-outage=continue"] if case == "outage" else []
    flags += [f"--fault={f.format(at=BEFORE, window=a.window)}" for f in faults]
    subprocess.run([binary(), "up", *flags, f"--exec={' '.join(execs)}"], check=True, stdout=subprocess.DEVNULL)
    times = [json.loads(f.read_text()) for slot in range(3) for f in folder.glob(f"times.{slot}.*")]
    at = min(of[0] for of in times) + BEFORE
    if faults:
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        at = min(e["details"]["unix_ns"] for e in events if e["kind"] == "fault") / 1e9
    subprocess.run(["rm", "-r", run, *folder.glob("times.*")], check=True)

    def within(first: float, last: float) -> float:
        return sum(first <= t < last for of in times for t in of) / (last - first) / len(times)

    return within(at, at + a.window), within(at - 5, at)


def main() -> None:
    """Run all cases in each round, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consistency", default="asp")
    parser.add_argument("--recovery", nargs="+", default=["chain:2", "stateless"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--window", type=int, default=20, help="seconds of the window and of each fault")
    parser.add_argument("--parameters", type=int, default=1 << 18)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--learner", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.learner:
        learner(a)
        return
    print(f"steps of learners 0 to 2 per second; {a.consistency}, window {a.window} s, {a.parameters:,} parameters")
    for recovery in a.recovery:
        found: dict[str, list[float]] = {case: [] for case in a.cases}
        for _ in range(a.rounds):
            alone = 0.0
            for case in a.cases:
                if case == "outage" and recovery.startswith("chain"):
                    continue  # a chain does not survive the death of all its servers
                with tempfile.TemporaryDirectory() as folder:
                    during, before = rate(a, Path(folder), case, recovery)
                if case == "alone":
                    alone = during
                    found[case].append(during)
                else:
                    found[case].append(during / (before if case == "outage" or not alone else alone))
        for case, of in ((case, of) for case, of in found.items() if of):
            what = "steps/s" if case == "alone" else "of the rate before" if case == "outage" else "of alone"
            spread = f"{min(of):.3f} to {max(of):.3f}"
            print(f"{recovery:>24} {case:>8} {statistics.median(of):.3f} {what} ({spread})", flush=True)


if __name__ == "__main__":
    main()
