"""How much loss the infrequent averaging of DiLoCo costs: four learners compared with one process, at equal tokens.

    python tokens.py --data tinyshakespeare.txt --seeds 5 --outer 0.7 0.9 --outer 1 0.8

Each --outer is a rate and a momentum of the outer step. One process trains twice: with as many steps as the learners
have together, of the same batch; and with as many steps as each learner has, of a batch that is as large as all of
theirs. Each ends with the loss on the whole test text.

    python tokens.py --data tinyshakespeare.txt --with overlap=0 --with overlap=12,mix=0.5 --with compress=int8

Each --with has arguments of perdure.DiLoCo. They are compared with the first one, seed by seed, and the training of one
process is omitted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from text import Model, Text, loss_of, test_loss
from torchdata.stateful_dataloader import StatefulDataLoader

import perdure

BATCH, RATE = 16, 3e-3  # 0.003 is better for one process than 0.001


def alone(a: argparse.Namespace, seed: int, steps: int, batch: int) -> float:
    """Return the loss of one process without Perdure after a number of steps."""
    text, model, inner = made(a, seed)
    torch.manual_seed(seed)
    done = 0
    while done < steps:
        for rows in StatefulDataLoader(text.train, batch_size=batch, shuffle=True, drop_last=True):
            inner.zero_grad()
            loss_of(model, rows).backward()
            inner.step()
            done += 1
            if done == steps:
                break
    return test_loss(model, text)


def made(a: argparse.Namespace, seed: int) -> tuple[Text, Model, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    text = Text(a.data)
    model = Model(text.letters, a.width, a.layers)
    return text, model, torch.optim.AdamW(model.parameters(), RATE)


def learn(a: argparse.Namespace) -> None:
    """One learner of DiLoCo, which `perdure launch` has started."""
    text, model, inner = made(a, a.seed)
    with perdure.start() as job:
        rank, of = job.share
        torch.manual_seed(1000 * a.seed + rank)
        loader = StatefulDataLoader(text.train[rank::of], batch_size=BATCH, shuffle=True, drop_last=True)
        outer = perdure.Nesterov(*a.outer[0])
        more = dict(of.split("=", 1) for of in (a.settings or [""])[0].split(",") if of)
        with perdure.DiLoCo(
            job,
            model,
            inner,
            sync_every=a.sync_every,
            overlap=int(more.pop("overlap", 0)),
            mix=float(more.pop("mix")) if "mix" in more else None,
            outer=outer,
            state=[loader],
            **more,
        ) as d:
            rounds = a.steps // a.sync_every
            while job.now <= rounds:
                for rows in loader:
                    inner.zero_grad()
                    loss_of(model, rows).backward()
                    inner.step()
                    if d.synced and job.now > rounds:
                        break
        if rank == 0:
            a.loss.write_text(json.dumps(test_loss(model, text)))


def together(a: argparse.Namespace, seed: int, outer: list[float], settings: str) -> float:
    """Return the loss of all learners of DiLoCo.

    Args:
        a: The settings.
        seed: The seed.
        outer: The rate and the momentum of the outer step.
        settings: More arguments of perdure.DiLoCo.
    """
    a.loss.unlink(missing_ok=True)
    launch = [sys.executable, "-m", "perdure", "launch", "--nproc", str(a.learners), "--recovery", "resend:auto"]
    own = ["--data", a.data, "--steps", a.steps, "--sync-every", a.sync_every, "--seed", seed, "--loss", a.loss]
    own += ["--width", a.width, "--layers", a.layers, "--outer", *outer, "--with", settings]
    done = subprocess.run([*launch, __file__, *map(str, own)], capture_output=True, text=True, check=False)
    if done.returncode or not a.loss.exists():
        raise SystemExit(f"the learners of seed {seed} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(a.loss.read_text()))


def compare(a: argparse.Namespace, outer: list[float]) -> None:
    """Print the loss with each of the settings, relative to the first ones."""
    differences: list[list[float]] = [[] for _ in a.settings]
    for seed in range(a.first, a.first + a.seeds):
        losses = [together(a, seed, outer, of) for of in a.settings]
        print(
            f"seed {seed}: " + ", ".join(f"{o}: {loss:.4f}" for o, loss in zip(a.settings, losses, strict=True)),
            flush=True,
        )
        for of, loss in zip(differences, losses, strict=True):
            of.append(loss / losses[0] - 1)
    a.loss.unlink(missing_ok=True)
    for settings, of in zip(a.settings, differences, strict=True):
        # Student's t for 95% and up to 9 degrees of freedom
        t = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26][min(len(of), 10) - 2]
        half = t * statistics.stdev(of) / len(of) ** 0.5
        mean = statistics.mean(of)
        print(
            f"{settings or 'no settings'}: {mean:+.2%} (95%: {mean - half:+.2%} to {mean + half:+.2%}), {len(of)} seeds"
        )


def main() -> None:
    p = argparse.ArgumentParser(description="Loss of DiLoCo compared with one process, at equal tokens.")
    p.add_argument("--data", type=Path, required=True, help="a text, such as tiny Shakespeare")
    p.add_argument("--steps", type=int, default=1000, help="inner steps of each learner")
    p.add_argument("--sync-every", type=int, default=50, help="of them between two outer steps")
    p.add_argument("--learners", type=int, default=4)
    p.add_argument("--seeds", type=int, default=5, help="how many")
    p.add_argument("--first", type=int, default=1, help="the first seed")
    p.add_argument(
        "--outer",
        type=float,
        nargs=2,
        action="append",
        metavar=("RATE", "MOMENTUM"),
        help="of Nesterov's outer step; may be given again (default 0.7 0.9)",
    )
    p.add_argument(
        "--with",
        dest="settings",
        action="append",
        metavar="NAME=VALUE,...",
        help="overlap, mix, compress, compress_weights; may be given again",
    )
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    p.add_argument("--loss", type=Path, default=Path("tokens.loss"), help="a file for the learners' loss meanwhile")
    a = p.parse_args()
    if a.seed is not None:
        learn(a)
        return
    outers = a.outer or [[0.7, 0.9]]
    if a.settings:
        if a.seeds < 2:
            raise SystemExit("--with compares seed by seed: choose --seeds 2 or more")
        compare(a, outers[0])
        return
    rows: list[list[float]] = []
    for seed in range(a.first, a.first + a.seeds):
        many = alone(a, seed, a.steps * a.learners, BATCH)
        large = alone(a, seed, a.steps, BATCH * a.learners)
        print(f"seed {seed}: one process: as many steps {many:.4f}, as large a batch {large:.4f}", flush=True)
        rows.append([many, large])
        for outer in outers:
            rows[-1].append(together(a, seed, outer, ""))
            print(f"seed {seed}: DiLoCo, outer {outer}: {rows[-1][-1]:.4f}", flush=True)
    a.loss.unlink(missing_ok=True)
    many, large, *ours = (statistics.mean(column) for column in zip(*rows, strict=True))
    tokens = a.steps * a.learners * BATCH * 64 / 1e6
    print(f"{tokens:.1f} M tokens, {a.learners} learners, {a.sync_every} steps between outer ones, {len(rows)} seeds:")
    for outer, loss in zip(outers, ours, strict=True):
        print(
            f"outer {outer}: {loss:.4f}, {loss / many - 1:+.1%} of one process with as many steps,"
            f" {loss / large - 1:+.1%} of one with as large a batch"
        )


if __name__ == "__main__":
    main()
