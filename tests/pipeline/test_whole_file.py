"""Files that appear when they are whole."""

from __future__ import annotations

from pathlib import Path

from pipeline.whole_file import write_text


def test_a_link_where_the_file_is_written_first_is_not_written_through(tmp_path: Path) -> None:
    """In a folder that came from elsewhere it led to a file of the user's, whose content was lost."""
    own = tmp_path / ".bashrc"
    own.write_text("the user's own")
    (tmp_path / "plan.yaml.partial").symlink_to(own)
    write_text(tmp_path / "plan.yaml", "stages: []")
    assert own.read_text() == "the user's own"
    assert not (tmp_path / "plan.yaml").is_symlink()
    assert (tmp_path / "plan.yaml").read_text() == "stages: []"


def test_the_rest_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml.partial").write_text("half of a pl")
    write_text(tmp_path / "plan.yaml", "stages: []")
    assert [each.name for each in tmp_path.iterdir()] == ["plan.yaml"]
