"""A small transformer for benchmarks: a decoder with learned positions, as GPT-2 has it."""

from torch import Tensor, nn


class Gpt(nn.Module):
    """Next-token scores (batch, vocabulary, tokens) from token numbers (batch, tokens)."""

    def __init__(self, vocabulary: int, tokens: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embedding(x) + self.positions.weight
        return self.head(self.blocks(found, mask=self.mask, is_causal=True)).transpose(1, 2)
