"""The network and settings of "Training Through Failure" on Fashion-MNIST, while the only server is killed twice.

    perdure data fetch fashion-mnist
    python -m perdure launch --nproc 1 --servers 1 --consistency asp --atomic-clocks --suspend-after 0s \
        --recovery stateless --on-outage continue --fault kill:server:0@40s+20s --fault kill:server:0@90s+20s \
        failure.py --data data/fashion-mnist

Training starts 10 s after the job, and ends 240 s later. Each line of runs/…/logs/worker-0.log has the seconds of
training, the number of steps, and the accuracy on 1,000 test images. Compare other values of --recovery and
--consistency. --scale 0.25 makes everything four times faster: then kill at 17.5s+5s and 30s+5s.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torchdata.stateful_dataloader import StatefulDataLoader

import perdure

a = argparse.ArgumentParser()
a.add_argument("--data", type=Path, default=Path("data/fashion-mnist"))
a.add_argument("--seconds", type=float, default=240)
a.add_argument("--step", type=float, default=0.25, help="seconds that a step takes; the program sleeps the rest")
a.add_argument("--scale", type=float, default=1.0, help="a factor of all times")
a.add_argument("--seed", type=int, default=1)
a = a.parse_args()
torch.set_num_threads(1)


def read(part):
    """Return images of 28 x 28 with values in [-1, 1], and their classes."""
    x = np.frombuffer(gzip.decompress((a.data / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    y = np.frombuffer(gzip.decompress((a.data / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return torch.from_numpy(x.reshape(-1, 1, 28, 28) / np.float32(127.5) - 1), torch.from_numpy(y.astype(np.int64))


def accuracy(count):
    """Return the accuracy on the first test images, with the weights that this process has."""
    model.eval()
    with torch.no_grad():
        guess = torch.cat([model(part).argmax(1) for part in test[0][:count].split(500)])
    model.train()
    return (guess == test[1][:count]).float().mean().item()


job = perdure.start()
began = (job.run_folder / "secret").stat().st_mtime + 10  # the same for a process that is restarted after a rollback
rank, of = job.share
torch.manual_seed(a.seed)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(32 * 7 * 7, 512), nn.ReLU(), nn.Dropout(0.25), nn.Linear(512, 10)),
)
train, test = read("train"), read("t10k")
part = torch.utils.data.TensorDataset(train[0][rank::of], train[1][rank::of])
loader = StatefulDataLoader(part, batch_size=32, shuffle=True)
with perdure.ServerOptimizer(job, model, torch.optim.SGD(model.parameters(), 0.01), state=[loader]) as p:
    time.sleep(max(0.0, began - time.time()))
    shown = until = time.time()
    for _ in job.epochs(1000):
        for x, y in loader:
            if time.time() > began + a.seconds * a.scale:
                raise perdure.Done
            F.cross_entropy(model(x), y).backward()
            until = max(until + a.step * a.scale, time.time() - a.step * a.scale)
            time.sleep(max(0.0, until - time.time()))
            p.step()
            p.zero_grad()
            if job.slot == 0 and time.time() > shown:
                shown = time.time() + 5 * a.scale
                print(f"{(time.time() - began) / a.scale:.1f} {job.now} {accuracy(1000):.4f}", flush=True)
print(f"test accuracy {accuracy(10_000):.4f} after {job.now} clocks", flush=True)
