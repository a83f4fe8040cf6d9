"""Fine-tunes the last layer and the head of a small BERT of Hugging Face's: which module is a piece of code from?"""

import email.message
import json.decoder
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

import agileml

PASSES, BATCH, LENGTH = 4, 32, 48


class Pieces(Dataset[dict[str, torch.Tensor]]):
    """Pieces of two modules, a token for each byte, labelled with their module."""

    def __init__(self, items: int = 512) -> None:
        self.texts = [Path(module.__file__).read_bytes() for module in (json.decoder, email.message)]
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        label, start = number % 2, number * 29 % 9000
        codes = torch.tensor(list(self.texts[label][start : start + LENGTH])).clamp(max=127)
        return {"input_ids": codes, "labels": torch.tensor(label)}


def classifier() -> BertForSequenceClassification:
    """Stands for `from_pretrained`, without a download."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=128, max_position_embeddings=LENGTH, **sizes))
    model.bert.encoder.layer[0].requires_grad_(False)
    return model.train()


def main() -> None:
    torch.manual_seed(0)
    model, dataset = classifier(), Pieces()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 8, PASSES * len(dataset) // BATCH)
    trainer = agileml.Trainer("examples/machines.yaml")
    model, optimizer, loader = trainer.prepare(model, optimizer, dataset, batch_size=BATCH, schedule=schedule)
    for _ in trainer.passes(PASSES):
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        batch = next(iter(DataLoader(dataset, 256)))
        right = model(**batch).logits.argmax(1) == batch["labels"]
    print(f"accuracy {float(right.float().mean()):.3f}")
    model.save_pretrained("runs/bert")


if __name__ == "__main__":
    main()
