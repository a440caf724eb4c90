"""How much of the time two learners of DiLoCo compute if each has a slow link, with and without an overlap.

Each learner is in a network namespace of its own, and tc limits its link in both directions. The servers' link has no
limit. A step takes 35 ms; the program sleeps for the most part of it. States go to a store on this machine, so only the
weights cross the link. It needs root, and the programs ip and tc.

    python links.py --rates 200 1000 5000 --every 32 128 --with "" --with compress=int8,compress_weights=int8

The bound without an overlap is H·T / (H·T + X), and with an overlap of τ it is H·T / max(H·T, (H - τ)·T + X). X is the
time of the weights over the link, up and then down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import perdure
from perdure._agent import binary

STEP = 0.035  # seconds
BITS = {None: 32, "bf16": 16, "int8": 8 + 32 / 1024, "2bit": 2 + 128 / 1024}  # of a value, with those of its row
_NET = "10.77.{}.{}"


def learner(a: argparse.Namespace) -> None:
    """One learner. It writes the fraction of the time that it computes."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Linear(1024, a.parameters // 1024, bias=False)
    inner = torch.optim.SGD(model.parameters(), 1e-3)
    model.weight.grad = torch.randn_like(model.weight)  # zeros would be packed
    how = {"sync_every": a.sync_every, "overlap": a.overlap} | arguments(a.settings[0])
    with perdure.start() as job, perdure.DiLoCo(job, model, inner, **how) as d:
        begun = 0.0
        for step in range(a.sync_every * (a.rounds + 1) + a.overlap):
            if step == a.sync_every + a.overlap:  # the first round has no window before it, and new memory
                begun, waited = time.monotonic(), d.waited
            until = time.monotonic() + STEP
            before = d.waited
            inner.step()
            time.sleep(max(0.0, until + d.waited - before - time.monotonic()))
        took = time.monotonic() - begun
    found = {"share": a.sync_every * a.rounds * STEP / took, "waited": (d.waited - waited) / a.rounds}
    Path(f"{a.out}.{job.slot}").write_text(json.dumps(found))


def arguments(settings: str) -> dict[str, Any]:
    """Return the arguments of perdure.DiLoCo in a text such as compress=int8."""
    return dict(of.split("=", 1) for of in settings.split(",") if of)


@contextmanager
def namespaces(rate: int) -> Iterator[list[str]]:
    """Create the servers' namespace and one for each of two learners, whose links have a rate in Mbit/s."""
    names = [f"perdure-{os.getpid()}-{i}" for i in range(3)]
    with ExitStack() as undo:
        for name in names:
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "del", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for i, name in enumerate(names[1:], 1):
            run(
                "ip",
                "link",
                "add",
                f"p{i}a",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                f"p{i}b",
                "netns",
                name,
            )
            for there, end, last in ((names[0], f"p{i}a", 1), (name, f"p{i}b", 2)):
                run("ip", "-n", there, "addr", "add", f"{_NET.format(i, last)}/24", "dev", end)
                run("ip", "-n", there, "link", "set", end, "up")
                limit = ["rate", f"{rate}mbit", "burst", f"{max(256, rate)}kb", "latency", "50ms"]
                run("tc", "-n", there, "qdisc", "add", "dev", end, "root", "tbf", *limit)
            run("ip", "-n", name, "route", "add", "default", "via", _NET.format(i, 1))
        run("ip", "netns", "exec", names[0], "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield names


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def measure(a: argparse.Namespace, rate: int, sync_every: int, overlap: int, settings: str) -> None:
    """Train once, and print the share of the time that the slower learner computes."""
    with tempfile.TemporaryDirectory() as folder, namespaces(rate) as names, ExitStack() as undo:
        job, hub = Path(folder, "job.yaml"), f"{_NET.format(1, 1)}:7000"
        job.write_text(f"workload: own\nworkers: 2\nservers: 1\nrecovery: resend:auto\nstore: file://{folder}/store\n")
        own = [sys.executable, __file__, "--learner", "--parameters", a.parameters, "--rounds", a.rounds]
        own += ["--sync-every", sync_every, "--overlap", overlap, "--with", settings, "--out", f"{folder}/out"]
        host = ["host", "--join", hub, "--secret-file", f"{folder}/job/secret"]
        commands = [
            ["coordinator", "--job", job, "--dir", f"{folder}/job", "--listen", hub, "--insecure"],
            [*host, "--dir", f"{folder}/0", "--servers", "1", "--workers", "0"],
            *[[*host, "--dir", f"{folder}/{i}", "--servers", "0", "--workers", "1", "--", *own] for i in (1, 2)],
        ]
        running = []
        for name, command in zip([names[0], names[0], *names[1:]], commands, strict=True):
            log = undo.enter_context(open(f"{folder}/log", "a"))
            line = ["ip", "netns", "exec", name, binary(), *map(str, command)]
            running.append(subprocess.Popen(line, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}))
            undo.callback(running[-1].kill)
            while not Path(folder, "job", "secret").exists():
                if running[-1].poll() is not None:
                    raise SystemExit(f"it failed:\n{Path(folder, 'log').read_text()[-2000:]}")
                time.sleep(0.1)
        codes = [of.wait() for of in running]
        if any(codes):
            raise SystemExit(f"it failed ({codes}):\n{Path(folder, 'log').read_text()[-2000:]}")
        found = [json.loads(Path(f"{folder}/out.{slot}").read_text()) for slot in range(2)]
    how = arguments(settings)
    bits = BITS[how.get("compress")] + BITS[how.get("compress_weights")]
    x = bits * a.parameters / (rate * 1e6)
    compute = sync_every * STEP
    bound = compute / max(compute, (sync_every - overlap) * STEP + x)
    share, waited = min(of["share"] for of in found), max(of["waited"] for of in found)
    print(
        f"{rate} Mbit/s, sync_every {sync_every}, overlap {overlap}, {settings or 'float32'}: computing {share:.1%} "
        f"of the time, bound {bound:.1%}, ratio {share / bound:.2f}; {waited:.2f} s waited per outer step",
        flush=True,
    )


def main() -> None:
    p = argparse.ArgumentParser(description="Share of the time that learners of DiLoCo compute on slow links.")
    p.add_argument("--rates", type=int, nargs="+", default=[200, 1000, 5000], help="Mbit/s")
    p.add_argument("--every", type=int, nargs="+", default=[32, 128], help="values of sync_every")
    p.add_argument(
        "--with", dest="settings", action="append", metavar="NAME=VALUE,...", help="compress and compress_weights"
    )
    p.add_argument("--parameters", type=int, default=30_800_896)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--learner", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--sync-every", type=int, help=argparse.SUPPRESS)
    p.add_argument("--overlap", type=int, help=argparse.SUPPRESS)
    p.add_argument("--out", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.learner:
        learner(a)
        return
    for rate in a.rates:
        for every in a.every:
            for overlap in (0, every * 9 // 10):
                for settings in a.settings or [""]:
                    measure(a, rate, every, overlap, settings)


if __name__ == "__main__":
    main()
