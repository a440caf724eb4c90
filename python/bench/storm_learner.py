"""One learner of a storm: DiLoCo on a text, by Perdure or by torchft. `storm.py` starts it, and kills it.

It writes a line of JSON for whatever storm.py is to know. A step lasts at least --pace seconds, as on a machine of the
learner's own: so several learners can share the cores of one machine, and neither system gains from a dead learner's.
"""

# ruff: noqa: E402
from __future__ import annotations

import time

BEGUN = time.time()

import argparse
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from text import Model, Text, loss_of, test_loss
from torchdata.stateful_dataloader import StatefulDataLoader


class Log:
    """What a process tells storm.py."""

    def __init__(self, folder: Path, learner: int) -> None:
        self._file = open(folder / f"learner-{learner}-{os.getpid()}.jsonl", "w")  # noqa: SIM115
        self.say("begun", at=BEGUN)

    def say(self, what: str, at: float | None = None, **more: Any) -> None:
        self._file.write(json.dumps({"at": time.time() if at is None else at, "what": what, **more}) + "\n")
        self._file.flush()


def made(a: argparse.Namespace, learner: int) -> tuple[Text, Model, torch.optim.Optimizer, StatefulDataLoader]:
    """All begin with the same weights, and each has its own part of the text."""
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    text = Text(a.data)
    model = Model(text.letters, a.width, a.layers)
    torch.manual_seed(1000 * a.seed + learner)
    loader = StatefulDataLoader(text.train[learner :: a.learners], batch_size=a.batch, shuffle=True, drop_last=True)
    return text, model, torch.optim.AdamW(model.parameters(), 1e-3), loader


def steps(a: argparse.Namespace, model: Model, inner: torch.optim.Optimizer, loader: Any) -> Iterator[None]:
    """Make inner steps, at the pace that is asked for, until storm.py says stop."""
    due = time.monotonic()
    while True:
        for rows in loader:
            inner.zero_grad()
            loss_of(model, rows).backward()
            due = max(due + a.pace, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            inner.step()  # and the outer step behind it, where it is due
            yield


def by_perdure(a: argparse.Namespace, log: Log) -> None:
    import perdure.torch

    text, model, inner, loader = made(a, a.learner)
    log.say("prepared")
    with perdure.start() as job:
        log.say("joined")
        with perdure.DiLoCo(job, model, inner, sync_every=a.sync_every, state=[loader]) as d:
            log.say("ready", step=job.now, inner=d._steps)
            for _ in steps(a, model, inner, loader):
                if d.synced:
                    log.say("commit", step=job.now, counts=True)
                    if (a.folder / "stop").exists():
                        break
        if job.slot == 0:
            log.say("loss", loss=test_loss(model, text))


def by_torchft(a: argparse.Namespace, log: Log) -> None:
    from torch.distributed import TCPStore
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    text, model, inner, loader = made(a, a.learner)
    outer = torch.optim.SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)
    log.say("prepared")

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        replica_id=f"learner_{a.learner}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    log.say("joined")
    with DiLoCo(manager, [model], inner, outer, sync_every=a.sync_every):
        log.say("ready", step=0)
        before = 0
        for done, _ in enumerate(steps(a, model, inner, loader), 1):
            if done % a.sync_every == 0:
                now = manager.current_step()
                if now > before:  # a learner that has copied another's state skips steps: its own samples are gone
                    log.say("commit", step=now, counts=now == before + 1, members=manager.num_participants())
                else:
                    log.say("discarded", step=now)
                before = now
                if (a.folder / "stop").exists():
                    break
    if a.learner == 0:
        log.say("loss", loss=test_loss(model, text))
    os._exit(0)  # its threads wait for who has gone already


def main() -> None:
    p = argparse.ArgumentParser(description="One learner of storm.py.")
    p.add_argument("system", choices=("perdure", "torchft"))
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--folder", type=Path, required=True)
    p.add_argument("--learner", type=int, default=int(os.environ.get("PERDURE_SLOT", "0")))
    for name in ("learners", "seed", "sync-every", "batch", "width", "layers"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--pace", type=float, required=True)
    a = p.parse_args()
    how = by_perdure if a.system == "perdure" else by_torchft
    how(a, Log(a.folder, a.learner))


if __name__ == "__main__":
    main()
