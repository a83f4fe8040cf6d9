"""The code of docs/guides/applications.md does what the page says; every key of the bundled applications is there."""

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from agileml.application import Application, InputError, Settings
from agileml.apps import application_class, build, kmeans, lda
from agileml.apps import logistic_regression as mlr
from agileml.apps import matrix_factorization as mf
from agileml.apps.documents import BagsFile, MadeDocuments, TextFile
from agileml.apps.labelled import Blobs, Digits, NpzFile
from agileml.apps.ratings import MadeRatings, RatingsFile
from agileml.config.job import from_values, load
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "applications.md"
PAGE, _, BUNDLED = GUIDE.read_text().partition("\n## The applications that come with Proteus\n")


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder of its own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_first_application_has_twenty_lines_and_learns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear, _, trial = code("python")
    body = linear[linear.index("class ") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
    (folder / "linear.py").write_text(linear)
    names: dict[str, object] = {}
    exec(trial, names)
    assert eval(capsys.readouterr().out)["mse"] < 1e-3
    weights = names["one"]["weights"]  # type: ignore[index]
    np.testing.assert_allclose(weights, [[1, -2, 3, 0.5]], atol=0.02)


def test_the_config_of_the_page_is_one(folder: Path) -> None:
    config = from_values(yaml.safe_load(code("yaml")[0]))
    (folder / "linear.py").write_text(code("python")[0])
    assert issubclass(application_class(config.application), Application)
    assert (config.slices, config.clocks_per_pass) == (8, 10)


def test_sparse_steps_count_every_word_once(folder: Path) -> None:
    (folder / "words.py").write_text(code("python")[1])
    application = build("words:WordCount", Settings(slices=4, clocks_per_pass=5))
    counts = run_sequential(
        application, optimizer=optimizer("sgd", learning_rate=1.0), clocks=10, partitions=3
    )["counts"]
    words = np.concatenate([application.load(index) for index in range(4)])
    assert np.array_equal(counts[:, 0], 2 * np.bincount(words, minlength=1000))


def test_the_page_shows_the_error_that_comes(folder: Path) -> None:
    right = "(error @ x[start:stop])[None] / 160"
    wrong = code("python")[0].replace(right, "(error @ x[start:stop]).astype(float) / 160")
    (folder / "linear.py").write_text(wrong)
    application = build("linear:LinearRegression", Settings(slices=8, clocks_per_pass=10))
    with pytest.raises(Exception, match="slice 0, part 0: ") as found:
        run_sequential(application, optimizer=optimizer("sgd", learning_rate=0.1), clocks=1)
    sentence = str(found.value).split("part 0: ")[1]
    assert sentence in PAGE.replace("\n", " ")


def test_names() -> None:
    assert application_class("kmeans") is kmeans.KMeans
    assert application_class("lda") is lda.Lda
    assert application_class("mf") is mf.MatrixFactorization
    assert application_class("mlr") is mlr.LogisticRegression


WRONG = {
    "mlp": "found 'mlp', expected kmeans, lda, mf, mlr, torch or package.module:Class",
    "mine:": "found 'mine:'",
    "no_such:Thing": "there is no module 'no_such' in ",
    "agileml.no_such:Thing": r"there is no module 'agileml.no_such'",
    "mine:Other": "module mine has no 'Other'",
    "mine:np": "np is no subclass of agileml.application.Application",
    "mine:Half": r"Half lacks load, process, tables\(\)",
    "broken:Thing": "importing broken failed: ZeroDivisionError: division by zero",
    "needs:Thing": "importing needs failed: No module named 'no_such'",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_names_are_one_sentence(folder: Path, name: str) -> None:
    (folder / "mine.py").write_text(
        "import numpy as np\nfrom agileml.application import Application\nclass Half(Application): pass\n"
    )
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "needs.py").write_text("import no_such\n")
    with pytest.raises(InputError, match=WRONG[name]) as found:
        build(name, Settings())
    assert str(found.value).startswith("application: ")
    assert "\n" not in str(found.value)


def test_the_page_of_the_bundled_applications_shows_every_key_and_its_default() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", BUNDLED, re.M | re.S)]
    shown = [block["data"] for block in blocks]
    for section in (RatingsFile, MadeRatings, Digits, NpzFile, Blobs, BagsFile, TextFile, MadeDocuments):
        defaults = {name: field.default for name, field in section.model_fields.items()}
        same_kind = [found for found in shown if found["kind"] == defaults["kind"]]
        assert any(
            found == {name: found["path"] if name == "path" else value for name, value in defaults.items()}
            for found in same_kind
        ), section
    models = {
        "mf": mf.FactorizationConfig,
        "mlr": mlr.RegressionConfig,
        "kmeans": kmeans.KMeansConfig,
        "lda": lda.LdaConfig,
    }
    jobs = {block["application"]: block for block in blocks if "application" in block}
    assert jobs.keys() == models.keys()
    for name, model in models.items():
        block = jobs[name]
        assert block["model"] == model().model_dump()
        assert from_values(block).application == block["application"]


COMMANDS = [
    (path.stem, command.split())
    for path in map(CONFIGS.joinpath, ["kmeans.yaml", "lda.yaml", "mf.yaml", "mlr.yaml"])
    for command in re.findall(rf"proteus run configs/{path.name}([^#\n]*)", path.read_text())
]


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=lambda part: str(part))
def test_the_commands_above_an_example_only_lack_the_file_that_they_name(
    name: str, words: list[str], folder: Path
) -> None:
    job = load(CONFIGS / f"{name}.yaml", [flag for word, flag in pairwise(words) if word == "--set"])
    settings = Settings(job.data, job.model, slices=job.slices, clocks_per_pass=job.clocks_per_pass)
    application = build(job.application, settings)
    if "path" not in job.data:
        assert application.tables()
        return
    with pytest.raises(InputError, match=r"^data.path: \S+ does not exist in "):
        application.tables()
