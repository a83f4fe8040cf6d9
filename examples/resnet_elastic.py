"""A small ResNet on made images of CIFAR's shape: coloured stripes, whose direction is the class."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import TensorDataset

import agileml

PASSES, BATCH = 3, 64


class Block(nn.Module):
    """Two convolutions with batch norm, and the input added to them."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        stride = outside // inside
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = relu(self.norms[0](self.first(x)))
        return relu(self.norms[1](self.second(inside)) + self.past(x))


def resnet(width: int = 8, classes: int = 4) -> nn.Module:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)]
    blocks = [Block(width, width), Block(width, 2 * width), Block(2 * width, 4 * width)]
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), *blocks, *head)


def stripes(items: int = 1024) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (items,), generator=generator)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    waves = torch.stack(
        [torch.sin(0.8 * (x * c + y * s)) for c, s in ((1, 0), (0, 1), (0.7, 0.7), (0.7, -0.7))]
    )
    colours = torch.rand(items, 3, 1, 1, generator=generator)
    noise = torch.randn(items, 3, 32, 32, generator=generator)
    return TensorDataset(waves[labels][:, None] * colours + 0.5 * noise, labels)


def main() -> None:
    torch.manual_seed(0)
    model, dataset = resnet(), stripes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    steps = PASSES * len(dataset) // BATCH
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [4])
    trainer = agileml.Trainer("examples/machines.yaml")
    model, optimizer, loader = trainer.prepare(model, optimizer, dataset, batch_size=BATCH, schedule=schedule)
    for _ in trainer.passes(PASSES):
        for images, labels in loader:
            loss = cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        images, labels = dataset[:256]
        print(f"accuracy {float((model(images).argmax(1) == labels).float().mean()):.3f}")


if __name__ == "__main__":
    main()
