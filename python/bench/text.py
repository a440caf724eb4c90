"""What the measurements train: a character transformer on tiny Shakespeare, or on any other text."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 64


class Text:
    """A text as numbers. Its last tenth is for tests."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        letters = sorted(set(text))
        at = {letter: i for i, letter in enumerate(letters)}
        codes = torch.tensor([at[c] for c in text])
        cut = len(codes) * 9 // 10
        self.letters = len(letters)
        self.train = codes[:cut].unfold(0, CONTEXT + 1, CONTEXT)  #: samples of CONTEXT letters and the one behind each
        self.test = codes[cut:].unfold(0, CONTEXT + 1, CONTEXT + 1)


class Model(nn.Module):
    """A transformer of four heads that foretells the next letter."""

    def __init__(self, letters: int, width: int, layers: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.letter(x) + self.place(torch.arange(x.shape[1], device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.out(self.layers(h, mask, is_causal=True))


def loss_of(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """The cross entropy of the letters of rows, in nats a letter."""
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def test_loss(model: nn.Module, text: Text) -> float:
    """The loss on the whole test text, without dropout."""
    model.eval()
    losses = [loss_of(model, rows).item() * len(rows) for rows in text.test.split(128)]
    model.train()
    return sum(losses) / len(text.test)
