"""The experiment of "Training Through Failure" with examples/failure.py: five strategies of the paper, and five more.

The first server is killed 30 s and 80 s after training starts, and is back after 20 s. Checkpoints are 25 s apart, and
so are the copies of the paper's chain: the paper's 100 steps of 0.25 s. One job runs at a time. Each run adds a line to
runs.csv, and runs that it has already are skipped, so the bench can be continued later.

    python failure.py --data data/fashion-mnist --out failure-runs --scale 0.25 --trials 5
    python failure.py --out failure-runs --table
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from perdure._agent import binary

EXAMPLE = Path(__file__).parents[1] / "examples" / "failure.py"
BEFORE = 10  # seconds from the job's start to that of the training
CONTINUE = ["--on-outage", "continue"]
STRATEGIES: dict[str, tuple[str, str, int, list[str]]] = {  # consistency, recovery, servers, flags
    "sync-checkpoints": ("bsp", "checkpoint:100", 1, []),
    "async-checkpoints": ("asp", "checkpoint:100", 1, []),
    "sync-chain": ("bsp", "chain:3,every:100", 3, []),
    "async-chain": ("asp", "chain:3,every:100", 3, []),
    "stateless": ("asp", "stateless", 1, CONTINUE),
    "sync-resend": ("bsp", "resend:20", 1, []),
    "async-resend": ("asp", "resend:20", 1, CONTINUE),
    "sync-chain:3": ("bsp", "chain:3", 3, []),
    "async-chain:3": ("asp", "chain:3", 3, []),
    "sync-stateless": ("bsp", "stateless", 1, []),
}
KILLS = {"killed": (30, 80), "none": ()}
PRICE = 0.154 / 3600  # dollars per second and machine: examples/prices.yaml, m6g.xlarge on demand
COLUMNS = ("strategy", "case", "trial", "scale", "step", "seconds", "load", "final", "before", "after", "gap")
COLUMNS += ("gradients", "lost", "redone", "cpu", "dollars")


def trial(a: argparse.Namespace, strategy: str, case: str, number: int) -> dict[str, object]:
    """Make one run, and return its line of runs.csv."""
    consistency, recovery, servers, flags = STRATEGIES[strategy]
    run = a.out / f"{strategy}-{case}-{number}"
    shutil.rmtree(run, ignore_errors=True)
    flags = [*flags, "--consistency", consistency, "--recovery", recovery, "--servers", str(servers)]
    if consistency != "bsp":
        flags += ["--atomic-clocks", "--suspend-after", "0s"]
    every = round(25 / a.step)  # the paper's 100 steps of its 0.25 s
    flags = [of.replace("100", str(every)) for of in flags]
    program = [str(EXAMPLE), "--data", str(a.data.absolute()), "--scale", str(a.scale), "--seed", str(number)]
    program += ["--step", str(a.step), "--seconds", str(a.seconds)]
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "1", "-q", "--out", str(run), *flags, *program]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as job:
        while job.poll() is None and not (run / "secret").exists():
            time.sleep(0.05)
        began = (run / "secret").stat().st_mtime + BEFORE if job.poll() is None else 0.0  # as in the example
        for kill in KILLS[case] if began else ():
            time.sleep(max(0.0, began + kill * a.scale - time.time()))
            fault = ["fault", "--run", str(run), f"kill:server:0@0s+{20 * a.scale}s"]
            subprocess.run([binary(), *fault], check=True, stdout=subprocess.DEVNULL)
    if job.returncode != 0:
        sys.exit(f"{run} failed")
    summary = json.loads((run / "summary.json").read_text())
    for large in ("log", "checkpoint", "snapshots"):  # up to 2 GB
        shutil.rmtree(run / large, ignore_errors=True)
    words = [line.split() for line in (run / "logs" / "worker-0.log").read_text().splitlines()]
    seen = [(float(w[0]), float(w[2])) for w in words if len(w) == 3 and w[1].isdigit()]
    last = next(w for w in words if w[:2] == ["test", "accuracy"])
    before = [at for at in seen if at[0] < 30] or [(math.nan, math.nan)]  # on a busy machine there may be none
    after = [at for at in seen if at[0] >= 30] or [(math.nan, math.nan)]
    machines = 2 + servers  # with the coordinator and the learner
    return {
        "strategy": strategy,
        "case": case,
        "trial": number,
        "scale": a.scale,
        "step": a.step,
        "seconds": a.seconds,
        "load": round(os.getloadavg()[0], 1),
        "final": last[2],
        "before": before[-1][1],
        "after": after[0][1],
        "gap": round(after[0][0] - before[-1][0], 1),
        "gradients": int(last[4]),
        "lost": summary["updates_lost"],
        "redone": summary["clocks_redone"],
        "cpu": round(sum(of["cpu_seconds"] for of in summary["usage"].values()), 1),
        "dollars": round(PRICE * machines * a.seconds, 5),
    }


def table(rows: list[dict[str, str]]) -> None:
    """Print medians and ranges for each strategy and case."""
    columns = ("final", "before", "after", "gap", "gradients", "lost", "redone", "cpu")
    print("| | | n | " + " | ".join(columns) + " | $ per 1,000 gradients |")
    print("|---|---|--:|" + "--:|" * (len(columns) + 1))
    for strategy in STRATEGIES:
        for case in KILLS:
            of = [r for r in rows if (r["strategy"], r["case"]) == (strategy, case)]
            if not of:
                continue
            cells = []
            for name in (*columns, "dollars"):
                values = [float(r[name]) / (float(r["gradients"]) / 1000 if name == "dollars" else 1) for r in of]
                digits = {"final": 3, "before": 3, "after": 3, "dollars": 4, "cpu": 1, "gap": 1}.get(name, 0)
                cell = f"{statistics.median(values):.{digits}f}"
                if min(values) != max(values):
                    cell += f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
                cells.append(cell)
            print(f"| `{strategy}` | {case} | {len(of)} | " + " | ".join(cells) + " |")


def main() -> None:
    """Make the runs that runs.csv lacks, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=Path("failure-runs"), help="a directory for runs and runs.csv")
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--cases", nargs="+", choices=list(KILLS), default=list(KILLS))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="a factor of all times but the start of processes")
    parser.add_argument("--step", type=float, default=0.25, help="seconds of a step, before scaling")
    parser.add_argument("--seconds", type=float, default=240, help="seconds of training, before scaling")
    parser.add_argument("--for", dest="most", type=float, default=1e9, help="seconds until no further run starts")
    parser.add_argument("--table", action="store_true", help="only print the table of runs.csv")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    file, until = a.out / "runs.csv", time.monotonic() + a.most
    rows = list(csv.DictReader(file.open())) if file.exists() else []
    todo = [(s, c, n) for n in range(1, a.trials + 1) for s in a.strategies for c in a.cases if not a.table]
    for strategy, case, number in todo:
        if (strategy, case, str(number)) in [(r["strategy"], r["case"], r["trial"]) for r in rows]:
            continue
        if time.monotonic() > until:
            break
        row = {name: str(value) for name, value in trial(a, strategy, case, number).items()}
        print(" ".join(row.values()), flush=True)
        rows.append(row)
        with file.open("w", newline="") as f:
            csv.DictWriter(f, COLUMNS, lineterminator="\n").writeheader()
            csv.DictWriter(f, COLUMNS, lineterminator="\n").writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
