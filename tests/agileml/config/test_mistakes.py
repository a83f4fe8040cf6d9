"""Mistakes in a config or a flag: one sentence with file, line, key, what was found and what is expected."""

from pathlib import Path

import pytest

from agileml.config.job import ConfigError, load
from tests.agileml.config.files import write

# Only the key and what is wrong with it: the text that a user acts on.
MISTAKES = [
    ("clock: 3", ":3: clock: unknown key, did you mean clocks?"),
    ("machines: {reliabel: 1}", ":3: machines.reliabel: unknown key, did you mean reliable?"),
    ("optimizer: {kind: adam, beta: 0.5}", ":3: optimizer.beta: unknown key for kind adam, did you mean beta2?"),
    ("optimizer: {kind: adam, epsilon: 5e-324}", ":3: optimizer.epsilon: found 5e-324, expected at least 1e-30"),
    ("optimizer: {kind: adadelta}", ":3: optimizer.kind: found 'adadelta', expected one of sgd, momentum, adagrad"),
    ("slices: ten", ":3: slices: found 'ten', expected a whole number"),
    ("slices: 2.5", ":3: slices: found 2.5, expected a whole number"),
    ("slices: 12", ":3: slices: found 12, expected a power of two (8 or 16)"),
    ("slices: 4", ":3: slices: found 4, expected at least machines.max = 8"),
    ("units_per_slice: 3", ":3: units_per_slice: found 3, expected a power of two (2 or 4)"),
    ("seed: -1", ":3: seed: found -1, expected at least 0"),
    ("seed: true", ":3: seed: found true, expected a whole number"),
    ("deterministic: yes", ":3: deterministic: found 'yes', expected true or false"),
    ("machines: {reliable: 0}", ":3: machines.reliable: found 0, expected at least 1 reliable machine"),
    ("machines: {transient: 8}", ":3: machines.max: found 8, expected at least reliable + transient = 9"),
    ("machines: 3", ":3: machines: found 3, expected a mapping of keys"),
    ("machines: {cpus: many}", ":3: machines.cpus: found 'many', expected a number"),
    ("machines:\n  gpus: -1", ":4: machines.gpus: found -1, expected at least 0"),
    ("stage: 4", ":3: stage: found 4, expected auto, thresholds, 1, 2 or 3"),
    ("stage: true", ":3: stage: found true, expected auto, thresholds, 1, 2 or 3"),
    ("stage_thresholds: [15, 1]", ":3: stage_thresholds: found the list [15.0, 1.0], expected the threshold"),
    ("stage_thresholds: 3", ":3: stage_thresholds: found 3, expected a list"),
    ("active_fraction: 0", ":3: active_fraction: found 0, expected more than 0"),
    ("partitions: 1000000000", ":3: partitions: found 1000000000, expected at most 4096"),
    ("clocks_per_pass: 100000000000000000000", ":3: clocks_per_pass: found 100000000000000000000, expected less than"),
    ("slices: 524288", ":3: slices: found 524288, expected at most 262144"),
    ("units_per_slice: 4194304", ":3: units_per_slice: found 4194304 with 8 slices, expected at most 1048576 units"),
    ("active_fraction: 1.5", ":3: active_fraction: found 1.5, expected at most 1"),
    ("data: movies.csv", ":3: data: found 'movies.csv', expected a mapping of keys"),
    ("model: {l2: .nan}", ":3: model.l2: found nan, expected a finite number"),
    ("consistency: {kind: bps}", ":3: consistency.kind: found 'bps', expected bsp, ssp, asp or elastic"),
    ("consistency: {kind: elastic, range: 0}", ":3: consistency.range: found 0, expected at least 1"),
    ("consistency: {kind: elastic, range: 10001}", ":3: consistency.range: found 10001, expected at most 10000"),
    (
        "consistency: {kind: elastic, objective: speed}",
        ":3: consistency.objective: found 'speed', expected rate or wait",
    ),
    (
        "consistency: {kind: ssp, slack: 1, range: 4}",
        ":3: consistency.range: found 4 with kind ssp, expected range with kind elastic only",
    ),
    (
        "consistency: {kind: elastic}\nexchange: allreduce\ndeterministic: false",
        ":4: exchange: found allreduce with consistency elastic, expected servers: an all-reduce is a clock",
    ),
    (
        "consistency: {kind: elastic}\nbalance: lbbsp",
        ":4: balance: found lbbsp with consistency elastic, expected static or auto",
    ),
    ("consistency: {kind: elastic}\noverlap: true", ":4: overlap: found true with consistency elastic, expected false"),
    ("consistency: {kind: elastic}\nhelping: true", ":4: helping: found helping with consistency elastic"),
    (
        "consistency: {kind: elastic}\nmachines: {workers: 2}",
        ":4: machines.workers: found 2 with consistency elastic, expected 1: a machine computes one",
    ),
    (
        "consistency: {kind: elastic}\nmachines: {gpus: 4}",
        ":4: machines.gpus: found 4 with consistency elastic, expected at most 1: a machine computes one",
    ),
    (
        "consistency: {kind: elastic}\noptimizer: {clip_norm: 1.0}",
        ":4: optimizer.clip_norm: found 1 with consistency elastic, expected bsp or ssp",
    ),
    ("balance: pool", ":3: balance: found pool with consistency bsp, expected static, lbbsp or auto: machines draw"),
    (
        "balance: pool\nconsistency: {kind: ssp}",
        ":3: balance: found pool with a slack of 0, expected static, lbbsp or auto: without slack ssp is bsp",
    ),
    (
        "balance: pool\nhelping: true\nconsistency: {kind: ssp, slack: 1}",
        ":3: balance: found pool with helping, expected static or auto: both would move the same units",
    ),
    ("pool_units: 0", ":3: pool_units: found 0, expected at least 1"),
    (
        "machines: {threads: 2}",
        ":3: machines.threads: found 2 with deterministic, expected 1: sums must not depend on the number of threads",
    ),
    ("pool_units: 4", ":3: pool_units: found 4 with balance auto and consistency bsp, expected it with a pool only"),
    (
        "pool_units: 4\nhelping: true\nconsistency: {kind: ssp, slack: 1}",
        ":3: pool_units: found 4 with balance auto and consistency ssp, expected it with a pool only (asp, or ssp with "
        "a slack, without helping)",
    ),
    (
        "pool_units: 99\nslices: 32\nconsistency: {kind: asp}",
        ":3: pool_units: found 99, expected at most slices x units_per_slice = 32",
    ),
    ("helping: yes", ":3: helping: found 'yes', expected auto, true, false or a mapping of keys"),
    ("helping: {replication: 1.5}", ":3: helping.replication: found 1.5, expected at most 1"),
    ("helping: {initail: 0.1}", ":3: helping.initail: unknown key, did you mean initial?"),
    (
        "helping: true\nconsistency: {kind: asp}",
        ":3: helping: found helping with consistency asp, expected bsp or ssp: with asp no machine waits for another",
    ),
    (
        "helping: true\nexchange: allreduce\ndeterministic: false",
        ":3: helping: found helping with exchange: allreduce, expected servers: there each machine adds up its own "
        "units",
    ),
    (
        "helping: true\noverlap: true",
        ":4: overlap: found true with helping, expected false: what a clock gives away is decided once its parameters "
        "are there",
    ),
    (
        "helping: true\nbalance: lbbsp",
        ":4: balance: found lbbsp with helping, expected static: both would move the same units",
    ),
    (
        "helping: auto\nbalance: lbbsp",
        ":4: balance: found lbbsp with helping: auto, expected auto or static: lbbsp leaves nothing to choose",
    ),
    (
        "balance: lbbsp\nconsistency: {kind: ssp, slack: 1}",
        ":3: balance: found lbbsp with consistency ssp, expected static or auto: only the workers of bsp wait for each "
        "other in every clock",
    ),
    (
        "overlap: true\nexchange: allreduce",
        ":3: overlap: found true with exchange: allreduce, expected false: each machine has all parameters there",
    ),
    (
        "overlap: true\nconsistency: {kind: ssp, slack: 1}",
        ":3: overlap: found true with consistency ssp, expected false: only in bsp does a clock wait",
    ),
    ("overlap: maybe", ":3: overlap: found 'maybe', expected auto, batches, true or false"),
    ("overlap: batches\nexchange: allreduce", ":3: overlap: found 'batches' with exchange: allreduce, expected false"),
    ("helping: true\noverlap: batches", ":4: overlap: found 'batches' with helping, expected false"),
    ("balance: fair", ":3: balance: found 'fair', expected static, lbbsp, pool or auto"),
    ("balance: 3", ":3: balance: found 3, expected static, lbbsp, pool, auto or a mapping of keys"),
    ("balance: {kind: lbbsp, predictor: lstm}", ":3: balance.predictor: found 'lstm', expected ema or narx"),
    ("balance: {predictors: narx}", ":3: balance.predictors: unknown key, did you mean predictor?"),
    (
        "balance: {kind: static, predictor: narx}",
        ":3: balance.predictor: found narx with kind static, expected ema: static shares need no speeds",
    ),
    (
        "balance: {predictor: narx}\nconsistency: {kind: asp}",
        ":3: balance.predictor: found narx with consistency asp, expected ema: only the clocks of bsp are planned",
    ),
    (
        "balance: {predictor: narx}\nhelping: true",
        ":3: balance.predictor: found narx with helping, expected ema: units change hands while a clock lasts",
    ),
    ("consistency: {kind: asp, slack: 2}", ":3: consistency.slack: found 2 with kind asp"),
    ("consistency: {kind: ssp}\ndeterministic: true", ":4: deterministic: found true with consistency ssp"),
    ("exchange: allreduce\ndeterministic: true", ":4: deterministic: found true with exchange: allreduce"),
    ("allreduce_backend: nccl", ":3: allreduce_backend: found nccl with exchange: servers, expected gloo"),
    (
        "exchange: allreduce\nallreduce_backend: nccl\nmachines: {gpus: 0.5}",
        ":5: machines.gpus: found 0.5 with allreduce_backend: nccl, expected at least 1",
    ),
    (
        "exchange: allreduce\nallreduce_backend: nccl\nmachines: {gpus: 1}",
        ": trusted_network: found false with allreduce_backend: nccl, expected true",
    ),
    ("consistency: {kind: ssp}\nexchange: allreduce", ":4: exchange: found allreduce with consistency ssp"),
    ("exchange: ring", ":3: exchange: found 'ring', expected"),
    ("heartbeat: {timeout_s: 0.1}", ":3: heartbeat.timeout_s: found 0.1, expected at least twice interval_s"),
    ("heartbeat: {timeout_s: 90}", ":3: heartbeat.timeout_s: found 90, expected 0.005 to 60"),
    (
        "heartbeat: {timeout_s: 0.004, interval_s: 0.001}",
        ":3: heartbeat.timeout_s: found 0.004, expected 0.005 to 60",
    ),
    ("heartbeat: {silent_limit_s: 0.5}", ":3: heartbeat.silent_limit_s: found 0.5, expected at least timeout_s"),
    ("cuts: {every_s: 0}", ":3: cuts.every_s: found 0, expected more than 0"),
    ("market: {kind: mad}", ":3: market.kind: found 'mad', did you mean made?"),
    ("market: {job_vcpus: 4}", ":3: market.job_hours: missing, expected a value"),
    (
        "market: {job_vcpus: 4, job_hours: 1}\nmachines: {transient: 1}",
        ":4: machines.transient: found 1 with a market, expected 0",
    ),
    (
        "market: {job_vcpus: 4, job_hours: 1, budget_usd: 1}",
        ":3: market.budget_usd: found a budget without checkpoint.path",
    ),
    ("verify: true\ndeterministic: false", ":3: verify: found true without deterministic"),
    ("out: 3", ":3: out: found 3, expected text"),
    ("plan: {at_clock: 3, join: 1}", ":3: plan: found the keys at_clock, join, expected a list"),
    ("plan: [{join: 1}]", ":3: plan[0]: found neither of at_clock and at_s, expected exactly one"),
    ("plan: [{at_clock: 3}]", ":3: plan[0]: found the keys at_clock, expected at_clock and exactly one of"),
    ("plan: [{at_clock: 3, jion: 1}]", ":3: plan[0].jion: unknown key, did you mean join?"),
    ("plan: [{at_clock: 3, join: 1, notice: 1}]", ":3: plan[0]: found the keys at_clock, join, notice"),
    ("plan: [{at_clock: 0, join: 1}]", ":3: plan[0].at_clock: found 0, expected at least 1"),
    ("plan: [{at_clock: 3, join: 0}]", ":3: plan[0].join: found 0, expected at least 1"),
    ("plan: [{at_clock: 3, join: 1, tier: spot}]", ":3: plan[0].tier: found 'spot', expected transient or reliable"),
    ("plan: [{at_clock: 3, notice: some}]", ":3: plan[0].notice: found 'some', expected a whole number of at least 1"),
    ("plan: [{at_clock: 3, notice: 1, warning_s: 0}]", ":3: plan[0].warning_s: found 0, expected more than 0"),
    ("plan: [{at_clock: 3, notice: 3}]", ":3: plan[0].notice: found 3 at clock 3, where there are 1 reliable and 2"),
    ("plan: [{at_clock: 3, join: 6}]", ":3: plan[0].join: found 6 more machines at clock 3, where there are 1 rel"),
    ("plan: [{at_clock: 20, join: 1}]", ":3: plan[0].at_clock: found 20, expected a clock before the last one"),
    ("plan: [{at_clock: 3, speed: 0.5}]", ":3: plan[0].machine: missing, expected a value"),
    ("plan: [{at_clock: 3, speed: 0, machine: m1}]", ":3: plan[0].speed: found 0, expected at least 0.0001"),
    ("plan: [{at_clock: 3, speed: 0.5, machine: 1}]", ":3: plan[0].machine: found 1, expected text"),
    ("plan: [{at_clock: 3, speed: 0.5, machine: a}]", ":3: plan[0].machine: found 'a', expected the name of a machine"),
    ("plan: [{at_clock: 3, speed: 2, machine: m1}]", ":3: plan[0].speed: found 2 without pace.unit_s"),
    (
        "plan: [{at_clock: 3, join: 1}, {at_clock: 4, kill: 1}]\naddress: auto",
        ":3: plan[1]: found kill with an address, expected no kill, kill_many, kill_reliable or freeze: a run neither",
    ),
    ("plan: [{at_clock: 4, freeze: 1, seconds: 1}]\naddress: 10.0.0.5:6379", ":3: plan[0]: found freeze with an"),
    ("pace: {unit_s: -1}", ":3: pace.unit_s: found -1, expected at least 0"),
    ("pace: {speeds: {m1: 0}}", ":3: pace.speeds.m1: found 0, expected at least 0.0001"),
    ("pace: {unit_s: 1e300}", ":3: pace.unit_s: found 1e+300, expected at most 3600"),
    ("pace: {speeds: {m1: 2}}", ":3: pace.speeds.m1: found 2 without unit_s, expected at most 1"),
    ("pace: {speeds: {spot: 0.5}}", ":3: pace.speeds.spot: found 'spot', expected the name of a machine: m0, m1"),
    (
        "market:\n  {kind: availability, availability: [a.json], job_vcpus: 4, job_hours: 1, types: [c5.xlarge]}",
        ":4: market.types: found the list ['c5.xlarge'] with kind availability, expected it left out: a node of a",
    ),
    (
        "market:\n  {kind: availability, availability: [a.json], job_vcpus: 4, job_hours: 1, min_delta: 0.01}",
        ":4: market.min_delta: found 0.01 with kind availability, expected it left out",
    ),
    (
        "market: {job_vcpus: 4, job_hours: 1}\nplan: [{at_clock: 3, kill_controller: true}, {at_clock: 4, kill: 1}]",
        ":4: plan[1]: found kill beside a market, expected disk_full, kill_controller or slow: the market alone",
    ),
    (
        "market: {job_vcpus: 4, job_hours: 1, paced: true}\npace: {unit_s: 0.1}",
        ":4: pace.unit_s: found 0.1 with market.paced, expected one of them",
    ),
    (
        "plan:\n  - {at_clock: 9, notice: 1}\n  - {at_clock: 3, notice: all}",
        ":4: plan[0].notice: found 1 at clock 9, where there are 1 reliable and 0 transient machines",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_one_sentence_with_file_line_key_found_and_expected(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"application: mf\nclocks: 20\n{text}\n")
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}{expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("application: mff\nclocks: 3", ":1: application: found 'mff', did you mean mf?"),
        ("application: 3\nclocks: 3", ":1: application: found 3, expected text"),
        ("application: mf\nclocks: 0", ":2: clocks: found 0, expected at least 1"),
        ("application: mf\nclocks:", ":2: clocks: found nothing, expected a whole number"),
        ("application: mf", ": clocks: missing, expected a value"),
        ("aplication: mf\nclocks: 3", ":1: aplication: unknown key, did you mean application?"),
        ("application: mf\nclocks: 3\nclocks: 4", ": clocks: the key comes twice, in lines 2 and 3"),
        ("machines: {max: 3, max: 4}", ": machines.max: the key comes twice, in lines 1 and 1"),
        ("application: mf\n clocks: 3", ": line 2 is not valid YAML"),
        ("application: [mf", ": line 1 is not valid YAML"),
        ("application: *mf", ": line 1 is not valid YAML: found undefined alias 'mf'"),
        ("application: !!python/object:os.system mf", ": line 1 is not valid YAML"),
        ("- mf", ": found the list ['mf'], expected keys such as"),
        ("", ": is empty, expected keys such as"),
        ("a: \x07", ": is not text that YAML allows"),
        (
            "application: mf\nclocks: {{ clocks }}",
            ": clocks: line 2 has a list or a mapping as a key, expected a word",
        ),
        ("data: {[1, 2]: 3}", ": data: line 1 has a list or a mapping as a key"),
        ("? [a]\n: 1", ": line 1 has a list or a mapping as a key"),
        ("clocks: !!int abc", ": has a value that is not what its tag says (invalid literal"),
        ("clocks: !!timestamp abc", ": has a value that is not what its tag says"),
        (f"clocks: {'9' * 5000}", ": has a value that is not what its tag says (Exceeds the limit"),
        ("data: {x: &a {y: *a}}", ": data.x.y: is a part of itself, by an alias"),
        ("data: &a [[*a]]", ": data[0][0]: is a part of itself, by an alias"),
    ],
)
def test_a_broken_file_is_one_sentence(text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}{expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", ["&x{n} [{below}]", "&x{n} {{<<: [{below}]}}"], ids=["lists", "merged keys"])
def test_aliases_of_aliases_fill_no_memory(form: str, tmp_path: Path) -> None:
    """Merged keys took ten times as long and as much for each line more; 15 lines are a thousand million million."""
    lines = ["application: mf", "x0: &x0 {a: 1}"]
    lines += [f"x{n}: " + form.format(n=n, below=", ".join([f"*x{n - 1}"] * 10)) for n in range(1, 15)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(
        ConfigError, match="values where its aliases are written out, expected at most 1000000"
    ):
        load(tmp_path / "config.yaml")


def test_an_alias_may_come_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "application: mf\nclocks: 3\ndata: {a: &it {x: [1]}, b: *it, c: [*it]}")
    it = {"x": [1]}
    assert load(path).data == {"a": it, "b": it, "c": [it]}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(ConfigError, match=r"binary\.yaml: is not UTF-8 text"):
        load(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("clocks", "--set clocks: expected the form key.path=value"),
        ("=3", "--set =3: expected the form key.path=value"),
        ("clocks=ten", "--set clocks=ten: clocks: found 'ten', expected a whole number"),
        ("clokcs=3", "--set clokcs=3: clokcs: unknown key, did you mean clocks?"),
        ("clocks.x=3", "--set clocks.x=3: clocks: is 20 and holds no keys"),
        ("balance.predictor=narx", "--set balance.predictor=narx: balance: is 'lbbsp' and holds no keys: expected "
            "--set 'balance={kind: lbbsp, predictor: narx}'"),
        ("helping.checks=9", "--set helping.checks=9: helping: is false and holds no keys: expected "
            "--set 'helping={checks: 9}', which is helping=true with that value"),
        ("clocks=[", "--set clocks=[: line 1 is not valid YAML"),
        ("machines.max=2", "--set machines.max=2: machines.max: found 2, expected at least reliable + transient = 3"),
        ("plan.3.join=2", "--set plan.3.join=2: plan: is a list of 1, found no item 3"),
        ("plan.0.notice=9", "--set plan.0.notice=9: plan[0].notice: found 9 at clock 3"),
        ("optimizer=sgd", "--set optimizer=sgd: optimizer: found 'sgd', expected a mapping of keys"),
    ],
)  # fmt: skip
def test_a_flag_is_validated_like_the_file_and_named(flag: str, expected: str, tmp_path: Path) -> None:
    text = "application: mf\nclocks: 20\nplan: [{at_clock: 3, notice: 1}]\nbalance: lbbsp\nhelping: false\n"
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(path, [flag])
    assert str(raised.value).startswith(expected)
