"""The Python on docs/guides/stragglers.md runs, and says what it says."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "stragglers.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["row"].over_ideal >= 1
    promised = re.search(r"cpu_batch_sizes\((.*?)\)\s+# array\((.*?)\)", blocks[0])
    assert promised
    assert list(names["cpu_batch_sizes"](*eval(promised[1]))) == eval(promised[2])
    assert np.array_equal(names["state"].sizes, names["cpu_batch_sizes"]([100.0, 35.0, 53.0], 384))
