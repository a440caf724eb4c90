"""Test accuracy of asynchronous training after as many examples as synchronous training, by rule and rate_scale.

Four learners train the network of examples/fashion.py, without dropout, on a part of Fashion-MNIST.

    python rates.py --data data/fashion-mnist --seeds 3
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import perdure
from perdure._agent import binary

RULES = {
    "SGD": lambda of, lr: torch.optim.SGD(of, lr),
    "momentum 0.9": lambda of, lr: torch.optim.SGD(of, lr, momentum=0.9),
    "Adam": lambda of, lr: torch.optim.Adam(of, lr),
}


def read(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of 28 x 28 with values in [0, 1], and their classes."""
    x = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    y = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return torch.from_numpy(x.reshape(-1, 1, 28, 28) / np.float32(255)), torch.from_numpy(y.astype(np.int64))


def learner(a: argparse.Namespace) -> None:
    """One learner. That of slot 0 writes the accuracy of the final model."""
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )
    x, y = read(a.data, "train")
    with perdure.start() as job:
        rank, of = job.share
        mine = torch.randperm(len(x), generator=torch.Generator().manual_seed(a.seed))[: a.examples][rank::of]
        scale = {} if a.scale is None else {"rate_scale": a.scale}
        with perdure.ServerOptimizer(job, model, RULES[a.rule](model.parameters(), a.rate), **scale) as p:
            for batch in mine[: len(mine) // a.batch * a.batch].split(a.batch):
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                p.step()
                p.zero_grad()
        model.eval()
        x, y = read(a.data, "t10k")
        if job.slot == 0:
            with torch.no_grad():
                found = sum(
                    int((model(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum()) for i in range(0, 10_000, 500)
                )
            a.out.write_text(str(found / 10_000))


def accuracy(a: argparse.Namespace, seed: int, rule: str, rate: float, consistency: str, scale: float | None) -> float:
    """Train once, and return the accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "accuracy"
        program = [sys.executable, __file__, "--learner", f"--data={a.data}", f"--out={out}", f"--seed={seed}"]
        program += [f"--examples={a.examples}", f"--batch={a.batch}", f"--rule='{rule}'", f"--rate={rate}"]
        program += [] if scale is None else [f"--scale={scale}"]
        flags = [f"--workers={a.learners}", "--servers=1", "--clocks=1000000", f"--consistency={consistency}", "-q"]
        flags += [
            "--recovery=none",
            f"--out={folder}/run",
            *(["--atomic-clocks", "--suspend-after=0s"] if consistency != "bsp" else []),
        ]
        subprocess.run([binary(), "up", *flags, f"--exec={' '.join(program)}"], check=True, stdout=subprocess.DEVNULL)
        return float(out.read_text())


def main() -> None:
    """Train with all settings and seeds, and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda of: Path(of).absolute(), required=True)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["asp"])
    for hidden, kind in (("out", Path), ("seed", int), ("rule", str), ("rate", float), ("scale", float)):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--learner", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.learner:
        learner(a)
        return
    for rule, rate in (("SGD", 0.1), ("momentum 0.9", 0.02), ("Adam", 0.001)):
        for model, scale in (("bsp", None), *((m, s) for m in a.models for s in (None, 1.0))):
            of = [accuracy(a, seed, rule, rate, model, scale) for seed in range(1, a.seeds + 1)]
            named = "" if model == "bsp" else f" rate_scale={1 / a.learners if scale is None else scale}"
            print(f"{rule:>12} {rate:<6} {model}{named}: {statistics.mean(of):.3f}", *of, flush=True)


if __name__ == "__main__":
    main()
