"""LDA against tomotopy on the same documents: tokens per second of CPU, and held-out perplexity.

    python benchmarks/bench_lda.py [--quick] [--topics 100] [--passes 60] [--slices 16]

Documents are drawn from the model. After each clock of our sequential run, a pass, tomotopy makes one with one worker,
in the same process, with the same priors, which neither fits. Both begin with random topics. `first` is the mean of
passes 2 to 6, `last` of the last five. Ours is the whole clock of the engine (reading rows, sampling, adding up,
applying): deterministic in 16 units, and not deterministic, as one. The perplexity is that of
`agileml.apps.lda.perplexity` on the same held-out tokens, from the topics' shares of words of each. Needs the extra
`bench`.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from typing import Any

import numpy as np
from measuring import versions

try:
    import tomotopy
except ModuleNotFoundError:
    print("skipped: tomotopy is not installed (pip install -e '.[bench]')")
    raise SystemExit(0) from None

from agileml.application import Array, Settings
from agileml.apps.lda import Lda, perplexity, topic_shares
from agileml.core.compute.threads import single_threaded
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

SUM = optimizer("sgd", learning_rate=1.0)  # tables of steps have no use for one
FIRST, LAST = slice(1, 6), slice(-5, None)


def peer_of(app: Lda) -> Any:
    """The training documents as a model of tomotopy."""
    train, model = app.data[0], app.model
    peer = tomotopy.LDAModel(k=model.topics, alpha=model.alpha, eta=model.beta, seed=1)
    peer.optim_interval = 0
    for document in np.split(train.tokens, train.starts[1:-1]):
        peer.add_doc([str(word) for word in document])
    peer.train(0, workers=1)
    return peer


def shares_of(peer: Any, app: Lda) -> Array:
    """phi (words, topics) of tomotopy's model; words that it never saw get what the prior gives."""
    topics, words = app.model.topics, app.data[0].word_count
    counts = peer.get_count_by_topics()
    shares = np.tile(app.model.beta / (counts + words * app.model.beta), (words, 1))
    known = np.array([int(word) for word in peer.used_vocabs])
    shares[known] = np.stack([peer.get_topic_word_dist(k) for k in range(topics)], axis=1)
    return shares


def compare(app: Lda, passes: int, deterministic: bool, peer: Any) -> tuple[list[float], list[float], float]:
    """(our seconds of CPU of each pass, the peer's, our perplexity)."""
    ours: list[float] = []
    theirs: list[float] = []
    mark = [time.process_time()]

    def after_a_pass(*_: Any) -> None:
        now = time.process_time()
        ours.append(now - mark[0])
        if peer is not None:
            peer.train(1, workers=1)
        mark[0] = time.process_time()
        theirs.append(mark[0] - now)

    with single_threaded():
        tables = run_sequential(
            app, optimizer=SUM, clocks=passes, deterministic=deterministic, on_clock=after_a_pass
        )
    shares = topic_shares(tables["topics"], app.model.beta)
    return ours, theirs, perplexity(shares, app.data[1], app.model.alpha)


def bench(topics: int, passes: int, slices: int, documents: int, words: int) -> None:
    data = {
        "kind": "made",
        "documents": documents,
        "words": words,
        "topics": topics,
        "length": 150,
        "beta": 0.01,
    }
    app = Lda(Settings(data, {"topics": topics, "alpha": 0.1, "beta": 0.01}, 0, slices, 1))
    tokens = len(app.data[0].tokens)
    limit = ">= 1.0" if topics <= 100 else ">= 2"
    print(
        f"\n{topics} topics, {tokens:,} tokens, {words:,} words, {passes} passes; million tokens per CPU second"
    )
    print(
        f"{'':<34}{'first':>8}{'peer':>8}{'ratio':>8}{'last':>8}{'peer':>8}{'ratio':>8}   {'perplexity':>10}"
    )
    for deterministic in (True, False):
        peer = peer_of(app)
        ours, theirs, found = compare(app, passes, deterministic, peer)
        row = f"{f'deterministic, {slices} units' if deterministic else 'not deterministic':<34}"
        for some in (FIRST, LAST):
            a, b = (tokens / np.mean(each[some]) / 1e6 for each in (ours, theirs))
            row += f"{a:8.2f}{b:8.2f}{a / b:8.2f}"
        print(f"{row}   {found:10.2f}   {limit}", flush=True)
        print(
            f"{'  tomotopy beside it':<82}   {perplexity(shares_of(peer, app), app.data[1], 0.1):10.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="100 topics, fewer documents")
    parser.add_argument("--topics", type=int, help="this number only")
    parser.add_argument("--passes", type=int)
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--documents", type=int)
    arguments = parser.parse_args()
    quick = arguments.quick
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
        f"{versions('Python', 'numba')}, tomotopy {tomotopy.__version__} ({tomotopy.isa})"
    )
    for topics in [arguments.topics] if arguments.topics else [100] if quick else [100, 1000]:
        passes = arguments.passes or (20 if quick else 60)
        documents = arguments.documents or (3_000 if quick else 20_000)
        bench(topics, passes, arguments.slices, documents, 2_000 if quick else 10_000)


if __name__ == "__main__":
    main()
