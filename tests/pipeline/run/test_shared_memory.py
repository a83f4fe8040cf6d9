"""Messages through shared memory: any tensors come as they went."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.run.shared_memory import SharedReceiver, SharedSender
from pipeline.stages.layering import Fact
from tests.thorough import examples

SHAPES = st.lists(st.lists(st.integers(1, 2), max_size=11).map(tuple), min_size=1, max_size=4)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int32, torch.bool, torch.bfloat16])


@settings(deadline=None, derandomize=True, max_examples=examples(40))
@given(shapes=SHAPES, dtype=DTYPES, missing=st.integers(0, 15), turned=st.booleans())
def test_tensors_come_as_they_went(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, missing: int, turned: bool
) -> None:
    facts = [Fact(shape, torch.empty(shape).stride(), dtype, False) for shape in shapes]
    with tempfile.TemporaryDirectory() as folder:
        receiver = SharedReceiver(Path(folder) / "link", facts, 2)
        sender = SharedSender(Path(folder) / "link", facts, 2)
        for number in range(3):
            sent = []
            for place, shape in enumerate(shapes):
                value = (torch.arange(torch.Size(shape).numel()) + number + place).to(dtype).reshape(shape)
                if turned and len(shape) > 1:  # the same shape, laid out the other way round
                    value = (
                        torch.empty(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1]).copy_(value)
                    )
                sent.append(None if missing >> place & 1 else value)
            sender.send(number, sent)
            for gone, found in zip(sent, receiver.receive(number), strict=True):
                if gone is None or found is None:
                    assert gone is found
                else:
                    assert torch.equal(gone, found) and found.dtype == dtype
            receiver.release(number)
