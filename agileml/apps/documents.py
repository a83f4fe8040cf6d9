"""Documents as bags of words: UCI and LDA-C files, text by scikit-learn's vectorizer, and documents drawn from LDA."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

import numpy as np
from pydantic import Field

from agileml.application import Array, InputError, Settings
from agileml.apps.data import Draw, check_enough, data_file, data_section, random_split
from agileml.config.section import Positive, PositiveInt, Section

Fraction = Annotated[float, Field(ge=0, lt=1)]
EXPECTED = (
    "expected UCI's docword format (three lines with the numbers of documents, words and entries, then "
    "`document word count`) or LDA-C's (`entries word:count ...` a line)"
)
MOST = int(np.iinfo(np.int32).max)  # of a word's number and of a count


class BagsFile(Section):
    """A file of word counts: UCI's docword format or LDA-C's, told apart by content; it may be compressed (.gz)."""

    kind: Literal["bags"] = "bags"
    path: str
    test_fraction: Fraction = 0.1


class TextFile(Section):
    """A text file, one document a line, as scikit-learn's CountVectorizer reads it.

    Words that fewer than `least_documents` documents have, or more than the share `most_share`, are left out, and so
    are English stop words; of the rest the `most_words` most frequent stay.
    """

    kind: Literal["text"] = "text"
    path: str
    stop_words: Literal["english"] | None = "english"
    least_documents: PositiveInt = 2
    most_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    most_words: PositiveInt = 20_000
    test_fraction: Fraction = 0.1


class MadeDocuments(Section):
    """Documents drawn from the model itself: topics by Dirichlet(`beta`), mixtures by Dirichlet(`alpha`)."""

    kind: Literal["made"] = "made"
    documents: PositiveInt = 1000
    words: PositiveInt = 1000
    topics: PositiveInt = 20
    length: PositiveInt = 100
    alpha: Positive = 0.1
    beta: Positive = 0.05
    test_fraction: Fraction = 0.1


@dataclass(frozen=True)
class Documents:
    """Tokens of documents: document d has `tokens[starts[d] : starts[d + 1]]`, word numbers, int32, ascending.

    `words`: what each word is called; empty where the file does not say.
    """

    name: str
    tokens: Array
    starts: Array
    word_count: int
    words: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Documents."""
        return len(self.starts) - 1

    def chosen(self, numbers: Array) -> Documents:
        """The documents of these numbers, in this order."""
        lengths = np.diff(self.starts)[numbers]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(starts[-1]) + np.repeat(self.starts[numbers] - starts[:-1], lengths)
        return Documents(self.name, self.tokens[at], starts, self.word_count, self.words)


def load_documents(settings: Settings) -> tuple[Documents, Documents]:
    """(training, test) documents of the `data` section, in an order drawn by the seed. Raises InputError,
    ConfigError."""
    default = "bags" if "path" in settings.data else "made"
    kinds: dict[str, type[Section]] = {"bags": BagsFile, "text": TextFile, "made": MadeDocuments}
    section = data_section(settings, kinds, default)
    assert isinstance(section, BagsFile | TextFile | MadeDocuments)
    if isinstance(section, BagsFile):
        documents = read_bags(section.path)
    elif isinstance(section, TextFile):
        documents = read_text(section)
    else:
        documents = make_documents(section, settings.rng(Draw.MADE))
    train, test = random_split(documents.count, section.test_fraction, settings)
    check_enough(len(train), documents.name, settings)
    return documents.chosen(train), documents.chosen(test)


def from_counts(
    name: str, documents: Array, words: Array, counts: Array, word_count: int, called: tuple[str, ...] = ()
) -> Documents:
    """Documents from triples (document, word, count); those without words are left out."""
    order = np.lexsort((words, documents))
    documents, words, counts = documents[order], words[order], counts[order]
    _, first = np.unique(documents, return_index=True)
    ends = np.cumsum(counts)
    starts = np.concatenate([[0], ends[np.append(first[1:] - 1, len(ends) - 1)]]).astype(np.int64)
    return Documents(name, np.repeat(words.astype(np.int32), counts), starts, word_count, called)


def make_documents(section: MadeDocuments, rng: np.random.Generator) -> Documents:
    """Documents of Poisson lengths, at least one token each."""
    topics = rng.dirichlet(np.full(section.words, section.beta), section.topics).cumsum(axis=1)
    lengths = np.maximum(1, rng.poisson(section.length, section.documents))
    mixtures = rng.dirichlet(np.full(section.topics, section.alpha), section.documents).cumsum(axis=1)
    of = np.repeat(np.arange(section.documents), lengths)
    tokens = np.empty(len(of), np.int32)
    which = np.empty(len(of), np.int32)
    ends = np.cumsum(lengths)
    for document, mixture in enumerate(mixtures):
        some = slice(ends[document] - lengths[document], ends[document])
        which[some] = np.searchsorted(mixture, rng.random(lengths[document]) * mixture[-1])
    for topic, shares in enumerate(topics):
        mine = which == topic
        tokens[mine] = np.searchsorted(shares, rng.random(int(mine.sum())) * shares[-1])
    np.minimum(tokens, section.words - 1, out=tokens)
    return from_counts("made documents", of, tokens, np.ones(len(of), np.int64), section.words)


def read_text(section: TextFile) -> Documents:
    """The lines of a text file as documents. Raises InputError."""
    from sklearn.feature_extraction.text import CountVectorizer

    file = data_file(section.path)
    vectorizer = CountVectorizer(
        stop_words=section.stop_words,
        min_df=section.least_documents,
        max_df=section.most_share,
        max_features=section.most_words,
    )
    try:
        with _opened(file) as stream:
            found = vectorizer.fit_transform(line.decode("utf-8") for line in stream).tocoo()
    except UnicodeDecodeError:
        raise InputError(
            f"data.path: {section.path} is no UTF-8 text, expected one document a line"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"data.path: {section.path} cannot be read ({error})") from None
    except ValueError as error:
        raise InputError(f"data.path: {section.path} has no words to use ({error})") from None
    words = tuple(vectorizer.get_feature_names_out().tolist())
    return from_counts(section.path, found.row, found.col, found.data.astype(np.int64), len(words), words)


def read_bags(path: str) -> Documents:
    """A file in UCI's docword or LDA-C's format. Raises InputError: another format, a line that does not fit."""
    file = data_file(path)
    try:
        with _opened(file) as stream:
            first = stream.readline(1 << 20).split()
        is_empty = first == [b"0"]  # LDA-C's first document may have no words
        if len(first) == 1 and first[0].isdigit() and not is_empty:
            return _read_uci(file, path)
        if first and first[0].isdigit() and all(b":" in entry for entry in first[1:]):
            return _read_ldac(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"data.path: {path} cannot be read ({error}), {EXPECTED}") from None
    shown = b" ".join(first)[:60].decode("utf-8", "replace")
    raise InputError(f"data.path: {path} begins with {shown!r}, {EXPECTED}")


def _opened(file: Path) -> IO[bytes] | gzip.GzipFile:
    with file.open("rb") as stream:
        is_packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(file, "rb") if is_packed else file.open("rb")


def _read_uci(file: Path, path: str) -> Documents:
    with _opened(file) as stream:
        head = [stream.readline() for _ in range(3)]
        if not all(_is_number(line.strip(), 0, 2**63) for line in head):
            raise InputError(f"data.path: {path} lines 1 to 3 are not three whole numbers, {EXPECTED}")
        documents, words, entries = (int(line) for line in head)
        limits = documents, min(words, MOST), MOST
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # without data the numbers below differ
                found = np.loadtxt(stream, np.int64, comments=None, ndmin=2)
        except ValueError as error:
            raise InputError(_first_bad_entry(file, path, limits, str(error))) from None
    if found.size and (found.shape[1] != 3 or ((found < 1) | (found > limits)).any()):
        raise InputError(_first_bad_entry(file, path, limits, f"{found.shape[1]} columns"))
    if len(found) != entries:
        raise InputError(
            f"data.path: {path} has {len(found)} lines `document word count`, expected {entries} as line 3 says"
        )
    if not entries:
        raise InputError(f"data.path: {path} has no words, {EXPECTED}")
    return from_counts(path, found[:, 0], found[:, 1] - 1, found[:, 2], words)


def _first_bad_entry(file: Path, path: str, limits: tuple[int, int, int], why: str) -> str:
    """The sentence for the first line of UCI's format that is no entry. `why`: what is wrong with all of them."""
    with _opened(file) as stream:
        for number, line in enumerate(stream, 1):
            fields = line.split()
            if number <= 3 or not fields:
                continue
            is_right = len(fields) == 3 and all(
                _is_number(field, 1, most) for field, most in zip(fields, limits, strict=True)
            )
            if not is_right:
                shown = line[:60].decode("utf-8", "replace").rstrip()
                return (
                    f"data.path: {path} line {number} is {shown!r}, expected a document from 1 to {limits[0]}, a word "
                    f"from 1 to {limits[1]} and a count from 1"
                )
    return f"data.path: {path} cannot be read ({why}), {EXPECTED}"


def _is_number(field: bytes, least: int, most: int) -> bool:
    """True for digits that make a whole number from `least` to `most`."""
    return field.isdigit() and len(field) <= 19 and least <= int(field) <= most


def _read_ldac(file: Path, path: str) -> Documents:
    triples = np.array(list(_ldac_entries(file, path)), np.int64).reshape(-1, 3)
    if not len(triples):
        raise InputError(f"data.path: {path} has no words, {EXPECTED}")
    return from_counts(path, triples[:, 0], triples[:, 1], triples[:, 2], int(triples[:, 1].max()) + 1)


def _ldac_entries(file: Path, path: str) -> Iterator[tuple[int, int, int]]:
    with _opened(file) as stream:
        for number, line in enumerate(stream):
            fields = line.split()
            entries = [entry.partition(b":") for entry in fields[1:]]
            is_right = all(
                _is_number(word, 0, MOST - 1) and _is_number(count, 1, MOST) for word, _, count in entries
            )
            if fields and not (is_right and fields[0] == str(len(entries)).encode()):
                shown = line[:60].decode("utf-8", "replace").rstrip()
                raise InputError(
                    f"data.path: {path} line {number + 1} is {shown!r}, expected the number of entries, then so many "
                    f"`word:count` with numbers below {MOST}"
                )
            for word, _, count in entries:
                yield number, int(word), int(count)
