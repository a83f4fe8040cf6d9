"""Rooms: folders import downward only, at every level of every package."""

import pytest

from tests.house.floors import PACKAGES, circle, floors, levels

MOST_FLOORS = 10
MOST_NAMES = 17


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_a_circle(package: str) -> None:
    circles = {folder: circle(arrows) for folder, arrows in levels(package).items()}
    assert {folder: found for folder, found in circles.items() if found} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_few_floors_and_few_names_at_each_level(package: str) -> None:
    for folder, arrows in levels(package).items():
        assert max(floors(arrows).values(), default=0) < MOST_FLOORS, folder
        assert len(arrows) <= MOST_NAMES, (folder, sorted(arrows))


def test_a_circle_is_found_wherever_it_hides() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"c": 0, "b": 1, "a": 2}
