"""A convolutional network on Fashion-MNIST with data parallelism. Adam runs on the servers.

    perdure data fetch fashion-mnist
    python -m perdure launch --nproc 2 --recovery resend:auto fashion.py --data data/fashion-mnist

Kill any process: the final accuracy stays the same to the last digit. A GPU is used if there is one.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import perdure

p = argparse.ArgumentParser()
p.add_argument("--data", type=Path, default=Path("data/fashion-mnist"))
p.add_argument("--epochs", type=int, default=1)
p.add_argument("--batch", type=int, default=64)
p.add_argument("--examples", type=int, default=60_000)
a = p.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
torch.manual_seed(1)


def read(part):
    """Return images of 28 x 28 with values in [0, 1], and their classes."""
    x = np.frombuffer(gzip.decompress((a.data / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    y = np.frombuffer(gzip.decompress((a.data / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return torch.from_numpy(x.reshape(-1, 1, 28, 28) / np.float32(255)), torch.from_numpy(y.astype(np.int64))


model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 7 * 7, 10)),
).to(device)


with perdure.start() as job:
    x, y = (v[: a.examples] for v in read("train"))
    sampler = perdure.Sampler(job, len(x), a.batch, drop_last=True)
    loader = sampler.loader(DataLoader(TensorDataset(x, y), batch_sampler=sampler))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with perdure.ServerOptimizer(job, model, optimizer) as p:
        for _ in job.epochs(a.epochs):
            for pictures, classes in loader:
                loss = F.cross_entropy(model(pictures.to(device)), classes.to(device))
                loss.backward()
                p.step()
                p.zero_grad()
                job.report(train_loss=loss.item(), samples=a.batch)
    model.eval()
    x, y = read("t10k")
    with torch.no_grad():
        guess = torch.cat([model(part.to(device)).argmax(1).cpu() for part in x.split(500)])
    if job.slot == 0:
        print(f"test accuracy {(guess == y).float().mean():.4f}", flush=True)
