"""The training loop of nanoGPT, in one process. train.py is the same program with Perdure."""

import math
import os

import torch
from model import GPT, get_batch, result

STEPS, WARMUP, RATE, LEAST, ACCUMULATE = 200, 20, 1e-2, 1e-3, 4

torch.set_num_threads(1)
torch.manual_seed(1337 + int(os.environ.get("RANK", 0)))
model = GPT()
optimizer = torch.optim.AdamW(model.groups(), RATE, betas=(0.9, 0.99))


def rate_of(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return LEAST + (RATE - LEAST) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


x, y = get_batch()
for step in range(STEPS):
    for g in optimizer.param_groups:
        g["lr"] = rate_of(step)
    for micro in range(ACCUMULATE):
        with torch.autocast("cpu", torch.bfloat16):
            logits, loss = model(x, y)
        x, y = get_batch()
        (loss / ACCUMULATE).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(result(model), flush=True)
