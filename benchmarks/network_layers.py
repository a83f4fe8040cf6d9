"""Layers of the networks of iBatch's table 1 (Wang et al.), from their architectures: parameters and multiply-adds.

Sources: VGG19 (Simonyan, Zisserman, 2014, table 1 E), GoogLeNet (Szegedy et al., 2014, table 1), Inception-V3 (Szegedy
et al., 2015, with its auxiliary head, as torchvision has it). VGG19-22K is VGG19 with 21,841 classes (Zhang et al.,
2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A layer with parameters; multiply-adds of the forward of one item."""

    name: str
    parameters: int
    multiply_adds: int


def conv(
    name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], side: int, *, normed: bool = False
) -> Layer:
    """A convolution whose output is side x side; with a bias, or normed: a scale and a shift for each output."""
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    weights = inputs * outputs * high * wide
    return Layer(name, weights + outputs * (2 if normed else 1), weights * side * side)


def dense(name: str, inputs: int, outputs: int) -> Layer:
    """A fully connected layer with a bias."""
    return Layer(name, inputs * outputs + outputs, inputs * outputs)


def vgg19(classes: int = 1000) -> Iterator[Layer]:
    """16 convolutions of 3 x 3 in five blocks, three dense layers."""
    inputs = 3
    for block, (outputs, count, side) in enumerate(
        [(64, 2, 224), (128, 2, 112), (256, 4, 56), (512, 4, 28), (512, 4, 14)], 1
    ):
        for number in range(1, count + 1):
            yield conv(f"conv{block}_{number}", inputs, outputs, 3, side)
            inputs = outputs
    yield dense("fc6", 512 * 7 * 7, 4096)
    yield dense("fc7", 4096, 4096)
    yield dense("fc8", 4096, classes)


# Side, inputs, then outputs: 1x1; 1x1 and 3x3 behind it; 1x1 and 5x5 behind it; 1x1 behind the pooling.
INCEPTION = {
    "3a": (28, 192, 64, 96, 128, 16, 32, 32),
    "3b": (28, 256, 128, 128, 192, 32, 96, 64),
    "4a": (14, 480, 192, 96, 208, 16, 48, 64),
    "4b": (14, 512, 160, 112, 224, 24, 64, 64),
    "4c": (14, 512, 128, 128, 256, 24, 64, 64),
    "4d": (14, 512, 112, 144, 288, 32, 64, 64),
    "4e": (14, 528, 256, 160, 320, 32, 128, 128),
    "5a": (7, 832, 256, 160, 320, 32, 128, 128),
    "5b": (7, 832, 384, 192, 384, 48, 128, 128),
}


def googlenet() -> Iterator[Layer]:
    """22 layers deep; branches one after the other, without auxiliary heads."""
    yield conv("conv1", 3, 64, 7, 112)
    yield conv("conv2_reduce", 64, 64, 1, 56)
    yield conv("conv2", 64, 192, 3, 56)
    for name, (side, inputs, one, less3, three, less5, five, pooled) in INCEPTION.items():
        yield conv(f"{name}_1x1", inputs, one, 1, side)
        yield conv(f"{name}_3x3_reduce", inputs, less3, 1, side)
        yield conv(f"{name}_3x3", less3, three, 3, side)
        yield conv(f"{name}_5x5_reduce", inputs, less5, 1, side)
        yield conv(f"{name}_5x5", less5, five, 5, side)
        yield conv(f"{name}_pool", inputs, pooled, 1, side)
    yield dense("classifier", 1024, 1000)


# A branch: outputs, kernel, side of each of its convolutions, in a row.
Branch = list[tuple[int, int | tuple[int, int], int]]


def block_a(pooled: int) -> list[Branch]:
    """Inception-V3 at 35 x 35."""
    return [
        [(64, 1, 35)],
        [(48, 1, 35), (64, 5, 35)],
        [(64, 1, 35), (96, 3, 35), (96, 3, 35)],
        [(pooled, 1, 35)],
    ]


def block_c(inner: int) -> list[Branch]:
    """Inception-V3 at 17 x 17."""
    tall, flat = (7, 1), (1, 7)
    return [
        [(192, 1, 17)],
        [(inner, 1, 17), (inner, flat, 17), (192, tall, 17)],
        [(inner, 1, 17), (inner, tall, 17), (inner, flat, 17), (inner, tall, 17), (192, flat, 17)],
        [(192, 1, 17)],
    ]


BLOCK_B: list[Branch] = [[(384, 3, 17)], [(64, 1, 35), (96, 3, 35), (96, 3, 17)]]
BLOCK_D: list[Branch] = [
    [(192, 1, 17), (320, 3, 8)],
    [(192, 1, 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, 3, 8)],
]
AUXILIARY: list[Branch] = [[(128, 1, 5), (768, 5, 1)]]


def block_e(name: str, inputs: int) -> Iterator[Layer]:
    """Inception-V3 at 8 x 8, where two branches fork once more."""
    for branch in ([(320, 1, 8)], [(384, 1, 8)], [(448, 1, 8), (384, 3, 8)], [(192, 1, 8)]):
        yield from row(name, inputs, branch)
    for fork in ("b", "c"):
        for kernel in ((1, 3), (3, 1)):
            yield conv(f"{name}{fork}_{kernel}", 384, 384, kernel, 8, normed=True)


def row(name: str, inputs: int, branch: Branch) -> Iterator[Layer]:
    """A branch's convolutions."""
    for outputs, kernel, side in branch:
        yield conv(f"{name}_{kernel}_{outputs}", inputs, outputs, kernel, side, normed=True)
        inputs = outputs


def inception_v3() -> Iterator[Layer]:
    """48 layers deep, inputs of 299 x 299; branches one after the other, then what follows."""
    stem: Branch = [(32, 3, 149), (32, 3, 147), (64, 3, 147), (80, 1, 73), (192, 3, 71)]
    yield from row("stem", 3, stem)
    blocks: list[tuple[str, int, list[Branch]]] = [
        ("5b", 192, block_a(32)),
        ("5c", 256, block_a(64)),
        ("5d", 288, block_a(64)),
        ("6a", 288, BLOCK_B),
        *[
            (f"6{name}", 768, block_c(inner))
            for name, inner in zip("bcde", (128, 160, 160, 192), strict=True)
        ],
        ("auxiliary", 768, AUXILIARY),
        ("7a", 768, BLOCK_D),
    ]
    for name, inputs, branches in blocks:
        for number, branch in enumerate(branches):
            yield from row(f"{name}{number}", inputs, branch)
    yield dense("auxiliary_fc", 768, 1000)
    for name, inputs in (("7b", 1280), ("7c", 2048)):
        yield from block_e(name, inputs)
    yield dense("classifier", 2048, 1000)


NETWORKS: dict[str, Callable[[], Iterator[Layer]]] = {
    "GoogLeNet": googlenet,
    "Inception-V3": inception_v3,
    "VGG19": vgg19,
    "VGG19-22K": lambda: vgg19(21_841),
}
