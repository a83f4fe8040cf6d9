"""What an application gets from the engine."""

from itertools import product

import pytest

from agileml.application import Settings


@pytest.mark.parametrize("seed", [0, 7, 2**62])
def test_every_key_has_random_numbers_of_its_own(seed: int) -> None:
    settings = Settings(seed=seed)
    keys = [key for length in range(5) for key in product((0, 1, 3), repeat=length)]
    drawn = [settings.rng(*key).bytes(16) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn == [settings.rng(*key).bytes(16) for key in keys]
