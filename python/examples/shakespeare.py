"""A character transformer with DiLoCo: each process trains separately, and all are averaged every 50 steps.

    python -m perdure launch --nproc 4 --recovery resend:auto shakespeare.py --data tinyshakespeare.txt

Kill any process: the final loss stays the same to the last digit. Any text works. A GPU is used if there is one.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torchdata.stateful_dataloader import StatefulDataLoader

import perdure

p = argparse.ArgumentParser()
p.add_argument("--data", type=Path, required=True)
p.add_argument("--steps", type=int, default=1000)
p.add_argument("--sync-every", type=int, default=50)
a = p.parse_args()
CONTEXT, BATCH, WIDTH = 64, 16, 128
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
torch.manual_seed(1)

text = a.data.read_text(encoding="utf-8")
letters = sorted(set(text))
codes = torch.tensor([letters.index(c) for c in text])
train, test = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, len(letters))

    def forward(self, x):
        h = self.letter(x) + self.place(torch.arange(x.shape[1], device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.out(self.layers(h, mask, is_causal=True))


def loss_of(model, rows):
    x = rows.to(device)
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


@torch.no_grad()
def test_loss(model):
    model.eval()
    loss = loss_of(model, test.unfold(0, CONTEXT + 1, CONTEXT + 1)[:256]).item()
    model.train()
    return loss


with perdure.start() as job:
    rank, of = job.share
    torch.manual_seed(rank)
    samples = train.unfold(0, CONTEXT + 1, CONTEXT)[rank::of]  # this slot's part of the text
    loader = StatefulDataLoader(samples, batch_size=BATCH, shuffle=True, drop_last=True)
    model = Model().to(device)
    inner = torch.optim.AdamW(model.parameters(), 1e-3)
    with perdure.DiLoCo(job, model, inner, sync_every=a.sync_every, state=[loader]) as d:
        while job.now <= a.steps // a.sync_every:
            for batch in loader:
                inner.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                inner.step()
                if d.synced:
                    job.report(train_loss=loss.item(), samples=a.sync_every * BATCH)
                    if rank == 0:
                        print(f"step {(job.now - 1) * a.sync_every}: test loss {test_loss(model):.4f}", flush=True)
                if job.now > a.steps // a.sync_every:
                    break
