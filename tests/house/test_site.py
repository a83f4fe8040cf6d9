"""The documentation builds as a site: strict, so links and anchors lead somewhere, and each page is in its menu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="only with the extra docs")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(build, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "WARNING" not in ran.stderr
    reference = (tmp_path / "site" / "api.html").read_text()
    for name in ("agileml.session.run", "agileml.application.Application", "bidbrain.policy.base.Policy"):
        assert f'id="{name}"' in reference
    start = (tmp_path / "site" / "index.html").read_text()
    assert 'href="guides/torch.html' in start and 'src="lanes.svg"' in start
