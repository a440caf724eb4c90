"""How fast reads and updates are from Python, beside a program in Go: `perdure bench moves`, in turns.

    python moves.py --rounds 7

One process of Python, or of Go, and one server with the same shards, asp, nothing kept. A pull reads all of a table
from the server, and never from the cache. A push ends the clock with updates that were written before where they are
sent from, and waits until they are applied; an inc copies them, too. Ratios are those of a round, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import perdure
from perdure._agent import binary

VALUES = {"4KiB": 1 << 10, "40MB": 10_000_000}  # of float32 in a table
DIM = 128
SHARDS = {"4KiB": 1, "40MB": 8}  # as perdure bench has them
OPS = ("push", "inc", "pull")  # what was never written is read from one page of zeros


def by_go(size: str, seconds: float) -> dict[str, float]:
    """The median seconds that each operation takes by a program in Go."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        what = ["--op", ",".join(OPS), "--rule", "add", "--size", size, "--conns", "1", "--socket", "unix"]
        how = ["--rounds", "3", "--time", f"{seconds}s", "--json", str(found)]
        subprocess.run([binary(), "bench", "moves", *what, *how], check=True, stdout=subprocess.DEVNULL)
        results = json.loads(found.read_text())
    return {r["op"]: r["p50_us"] / 1e6 for r in results}


def by_python(size: str, seconds: float) -> dict[str, float]:
    """The median seconds that each operation takes by a program in Python."""
    rows = VALUES[size] // DIM
    found = {}
    with perdure.start(servers=1, recovery="none", consistency="asp", args=[f"--shards={SHARDS[size]}"]) as job:
        table = job.table("w", rows=rows, dim=DIM, rule=perdure.Add())
        out, delta = job.empty((rows, DIM)), job.empty((rows, DIM))
        delta[:] = 1e-3
        for op in OPS:
            laps = []
            until = time.monotonic() + seconds
            while time.monotonic() < until or len(laps) < 10:
                if op == "pull":
                    table.forget()
                    begun = time.perf_counter()
                    table.get_run(0, rows, out=out)
                elif op == "push":
                    table.deltas()[:] = 1e-3
                    begun = time.perf_counter()
                    job.clock()
                    job.settle()
                else:
                    begun = time.perf_counter()
                    table.inc_run(0, delta)
                    job.clock()
                    job.settle()
                laps.append(time.perf_counter() - begun)
            found[op] = statistics.median(laps[2:])
    return found


def main() -> None:
    p = argparse.ArgumentParser(description="Reads and updates from Python beside the same in Go.")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--time", type=float, default=1.0, help="seconds that an operation is measured in a round")
    a = p.parse_args()
    for size, values in VALUES.items():
        rounds = []
        for _ in range(a.rounds):
            rounds.append((by_python(size, a.time), by_go(size, a.time)))
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        for op in OPS:
            ours = statistics.median(mine[op] for mine, _ in rounds)
            theirs = statistics.median(go[op] for _, go in rounds)
            speed = [go[op] / mine[op] for mine, go in rounds]
            print(
                f"{op} {size}: Python {1e6 * ours:.0f} µs ({4e-9 * values / ours:.2f} GB/s), Go {1e6 * theirs:.0f} µs, "
                f"{1e6 * (ours - theirs):+.0f} µs; {statistics.median(speed):.2f} of its speed "
                f"({min(speed):.2f} to {max(speed):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
