"""A small GPT as in nanoGPT, and its text: sums of two numbers, generated here."""

import hashlib
import random

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 32, 8, 32, 4, 2

numbers = random.Random(1)
pairs = [(numbers.randrange(100), numbers.randrange(100)) for _ in range(4000)]
text = "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)
letters = sorted(set(text))
codes = torch.tensor([letters.index(c) for c in text])
train, test = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]


def get_batch():
    """Return random pieces of the text, and the same pieces one letter later."""
    starts = torch.randint(len(train) - CONTEXT, (BATCH,)).tolist()
    return tuple(torch.stack([train[i + by : i + by + CONTEXT] for i in starts]) for by in (0, 1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        parts = self.heads(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.join(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters), bias=False)
        self.out.weight = self.letter.weight  # tied, as in nanoGPT
        for of in (self.letter, self.place):
            nn.init.normal_(of.weight, std=0.02)

    def forward(self, x, y):
        logits = self.out(self.norm(self.blocks(self.letter(x) + self.place.weight)))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def groups(self):
        """Return the groups of the optimizer: only matrices decay."""
        decayed, others = ([p for p in self.parameters() if (p.dim() >= 2) == of] for of in (True, False))
        return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


@torch.no_grad()
def result(model):
    """Return the loss on the rest of the text, and a hash of the weights."""
    model.eval()
    pieces = test.unfold(0, CONTEXT + 1, CONTEXT)
    digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest()
    return f"test loss {model(pieces[:, :-1], pieces[:, 1:])[1]:.4f}, weights {digest[:16]}"
