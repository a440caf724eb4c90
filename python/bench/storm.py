"""A storm of kills over DiLoCo, by Perdure or by torchft: what does it cost?

    python storm.py perdure --data tinyshakespeare.txt --learners 2 --per-hour 70 --minutes 10 --out storm.json

Learners are killed at the moments of a Poisson process, which go by the seed alone: both systems have the same ones.
--also kills servers and the coordinator of Perdure in turn, as often as learners. With --per-hour 0 nobody is killed.
It prints a summary, and writes all that happened to --out. `storm_page.py` makes a page of several of these files.

torchft is not a part of this package: `pip install torchft-nightly==2026.10.26`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class System:
    """The processes of one of the two. A learner that dies is started again at once."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        self.a, self.folder = a, folder
        names = ("learners", "seed", "sync_every", "batch", "width", "layers", "pace")
        self.own = [f"--{n.replace('_', '-')}={getattr(a, n)}" for n in names]
        self.own += [f"--data={a.data.absolute()}", f"--folder={folder}"]
        self.log = open(folder / "log", "w")  # noqa: SIM115
        self.env = os.environ | {"OMP_NUM_THREADS": "1"}

    def begin(self, command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env=self.env, **more)

    def tend(self) -> None:
        """Called often."""

    def others(self) -> list[int]:
        """The processes of servers and coordinators."""
        return []


class Perdure(System):
    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        super().__init__(a, folder)
        launch = ["launch", "--nproc", str(a.learners), "--servers=2", "--recovery=resend:auto", "-q"]
        launch += ["--out", str(folder / "run")]
        if a.preload:
            launch += ["--preload", "torch,torch._dynamo,torchdata.stateful_dataloader,perdure.torch"]
        program = [str(HERE / "storm_learner.py"), "perdure", *self.own]
        self.process = self.begin([sys.executable, "-m", "perdure", *launch, *program])

    def tend(self) -> None:
        if self.process.poll() is not None and not (self.folder / "stop").exists():
            raise SystemExit(f"the job has ended: {(self.folder / 'log').read_text()[-500:].strip()}")

    def others(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text().split("\0")
                if parent == self.process.pid and command[1] in ("server", "coordinator"):
                    found.append(int(folder.name))
        return sorted(found)

    def end(self) -> None:
        self.process.wait(timeout=120)


class Torchft(System):
    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        super().__init__(a, folder)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.env["TORCHFT_LIGHTHOUSE"] = f"http://localhost:{port}"
        lighthouse = str(Path(sys.executable).parent / "torchft_lighthouse")
        beats = ["--heartbeat_timeout_ms", str(a.heartbeat_ms)]
        self.lighthouse = self.begin([lighthouse, "--min_replicas", "1", "--bind", f"[::]:{port}", *beats])
        time.sleep(1)
        self.learners = [self.learner(i) for i in range(a.learners)]

    def learner(self, i: int) -> subprocess.Popen[bytes]:
        return self.begin([sys.executable, str(HERE / "storm_learner.py"), "torchft", "--learner", str(i), *self.own])

    def tend(self) -> None:
        if not (self.folder / "stop").exists():
            self.learners = [self.learner(i) if p.poll() is not None else p for i, p in enumerate(self.learners)]

    def end(self) -> None:
        for p in self.learners:
            p.wait(timeout=120)
        self.lighthouse.kill()


def said(folder: Path) -> list[dict[str, Any]]:
    """All that learners have said, in order."""
    lines = []
    for path in folder.glob("learner-*.jsonl"):
        found = re.fullmatch(r"learner-(\d+)-(\d+)\.jsonl", path.name)
        assert found is not None
        who, pid = map(int, found.groups())
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # its process died amid it
                lines.append({"learner": who, "pid": pid, **json.loads(line)})
    return sorted(lines, key=lambda line: line["at"])


def storm(a: argparse.Namespace, system: System) -> dict[str, Any]:
    """Let it run, and kill. Returns when it began, when it ended, and the kills."""
    folder, draw = system.folder, random.Random(a.seed)
    until = time.time() + 300
    while len({line["learner"] for line in said(folder) if line["what"] == "commit"}) < a.learners:
        if time.time() > until:
            raise SystemExit(f"no learner's outer step within 300 s; see {folder / 'log'}")
        system.tend()
        time.sleep(0.1)
    begun = time.time()
    moments, at = [], 0.0
    while a.per_hour:
        at += draw.expovariate(a.per_hour / 3600)
        if at > a.minutes * 60 - 20:  # the last one's cost is to be seen
            break
        moments.append((at, draw.randrange(a.learners), draw.random()))
    kills = []
    for after, victim, which in moments:
        while time.time() < begun + after:
            system.tend()
            time.sleep(0.01)
        kills.append(kill(a, system, victim, which, len(kills)))
    while time.time() < begun + a.minutes * 60:
        system.tend()
        time.sleep(0.01)
    ended = time.time()
    (folder / "stop").touch()
    system.end()
    return {"begun": begun, "ended": ended, "kills": kills}


def kill(a: argparse.Namespace, system: System, victim: int, which: float, so_far: int) -> dict[str, Any]:
    """Kill the newest process of a learner; with --also every second time another of the job's processes."""
    done: dict[str, Any] = {"at": time.time(), "learner": victim}
    others = system.others() if a.also and so_far % 2 else []
    if others:
        done["learner"], pid = None, others[int(which * len(others))]
    else:
        lines = [line for line in said(system.folder) if line["learner"] == victim and line["what"] == "begun"]
        pid = lines[-1]["pid"]
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just been killed, and is not back
        done["missed"] = True
    return {**done, "pid": pid}


def main() -> None:
    p = argparse.ArgumentParser(description="A storm of kills over DiLoCo.")
    p.add_argument("system", choices=("perdure", "torchft"))
    p.add_argument("--data", type=Path, required=True, help="a text, such as tiny Shakespeare")
    p.add_argument("--learners", type=int, default=2)
    p.add_argument("--per-hour", type=float, default=70, help="kills, on average")
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--also", action="store_true", help="kill servers and the coordinator, too")
    p.add_argument("--preload", action="store_true", help="Perdure: processes are forked by one that has imported all")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--sync-every", type=int, default=20)
    p.add_argument("--pace", type=float, default=0.15, help="seconds that a step lasts at least")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument(
        "--heartbeat-ms", type=int, default=5000, help="of torchft's lighthouse: who is silent so long is dead"
    )
    p.add_argument("--folder", type=Path, default=Path("storm.tmp"), help="what processes write; it is made anew")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    folder = a.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    system: System = Perdure(a, folder) if a.system == "perdure" else Torchft(a, folder)
    done = storm(a, system)
    settings = {name: value for name, value in vars(a).items() if not isinstance(value, Path)}
    a.out.write_text(json.dumps({**settings, **done, "said": said(folder)}) + "\n")
    print(f"{a.out}: {len(done['kills'])} kills in {a.minutes:g} minutes")


if __name__ == "__main__":
    main()
