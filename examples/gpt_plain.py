"""A small GPT with tied weights on text: this file's own and that of the Python library beside it."""

import json.decoder
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

PASSES, BATCH, CONTEXT = 2, 16, 64


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text, and the same one character later."""

    def __init__(self, items: int = 512) -> None:
        text = Path(json.decoder.__file__).read_bytes()
        self.codes = torch.tensor(list(text)).clamp(max=127)
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = number * 31 % (len(self.codes) - CONTEXT - 1)
        piece = self.codes[start : start + CONTEXT + 1]
        return piece[:-1], piece[1:]


class Gpt(nn.Module):
    """Layers of causal attention between an embedding and itself."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.scores = nn.Linear(width, 128, bias=False)
        self.scores.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = self.tokens(codes) + self.places.weight[: codes.shape[1]]
        return self.scores(self.layers(x, mask=self.mask))


def main() -> None:
    torch.manual_seed(0)
    model, dataset = Gpt(), Text()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True)
    for _ in range(PASSES):
        for codes, wanted in loader:
            loss = cross_entropy(model(codes).flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval()
    with torch.no_grad():
        codes, wanted = next(iter(DataLoader(dataset, 128)))
        print(f"loss {float(cross_entropy(model(codes).flatten(0, 1), wanted.flatten())):.3f}")


if __name__ == "__main__":
    main()
