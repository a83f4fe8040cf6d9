"""What the doctor finds, and that everything that is not right comes with what to do."""

import configparser
import socket
from pathlib import Path

import pytest

from agileml.cli import doctor
from agileml.cli.doctor import GIB, Finding, Severity

ALL = dict.fromkeys(doctor.NEEDED, "1.0") | {"ray": "2.60.0"}


@pytest.mark.parametrize(
    ("finding", "severity"),
    [
        (doctor.judge_python(3, 11), Severity.OK),
        (doctor.judge_python(3, 10), Severity.BLOCKS),
        (doctor.judge_python(3, 13), Severity.BLOCKS),
        (doctor.judge_packages(ALL), Severity.OK),
        (doctor.judge_packages(ALL | {"pyzmq": None}), Severity.BLOCKS),
        (doctor.judge_packages(ALL | {"ray": "2.54.1"}), Severity.OK),
        (doctor.judge_packages(ALL | {"ray": "2.9.3"}), Severity.BLOCKS),
        (doctor.judge_packages(ALL | {"ray": "2.53.0"}), Severity.BLOCKS),
        (doctor.judge_packages(ALL | {"ray": "2.61.0"}), Severity.BLOCKS),
        (doctor.judge_packages(ALL | {"ray": "3.0.0.dev0"}), Severity.BLOCKS),
        (doctor.judge_packages(ALL | {"ray": "unknown"}), Severity.BLOCKS),
        (doctor.judge_encryption(True), Severity.OK),
        (doctor.judge_encryption(False), Severity.BLOCKS),
        (doctor.judge_memory(8 * GIB, 16 * GIB), Severity.OK),
        (doctor.judge_memory(2 * GIB, 16 * GIB), Severity.ADVICE),
        (doctor.judge_memory(GIB // 2, 16 * GIB), Severity.BLOCKS),
        (doctor.judge_shared_memory(2 * GIB), Severity.OK),
        (doctor.judge_shared_memory(64 << 20), Severity.ADVICE),
        (doctor.judge_shared_memory(None), Severity.ADVICE),
        (doctor.judge_open_files(65536, 65536), Severity.OK),
        (doctor.judge_open_files(1024, 65536), Severity.ADVICE),
        (doctor.judge_open_files(256, 256), Severity.BLOCKS),
        (doctor.judge_disk(9 * GIB, "/tmp"), Severity.OK),
        (doctor.judge_disk(GIB // 2, "/tmp"), Severity.ADVICE),
        (doctor.judge_disk(GIB // 100, "/tmp"), Severity.BLOCKS),
        (doctor.judge_gpus([]), Severity.OK),
        (doctor.check_ports("127.0.0.1"), Severity.OK),
        (doctor.check_ports("192.0.2.250"), Severity.BLOCKS),  # TEST-NET-1 (RFC 5737): not ours
    ],
)  # fmt: skip
def test_what_a_figure_means(finding: Finding, severity: Severity) -> None:
    assert finding.severity is severity
    assert bool(finding.advice) == (severity is not Severity.OK)


def test_the_doctor_knows_the_range_of_ray_that_is_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    (asked,) = [each for each in setup["options"]["install_requires"].split() if each.startswith("ray[")]
    oldest, (major, minor) = doctor.RAY_OLDEST, doctor.RAY_NEWEST
    assert asked == f"ray[default]>={oldest[0]}.{oldest[1]},<{major}.{minor + 1}"


def test_an_address_that_nobody_answers_blocks() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        finding = doctor.check_ray_answers(f"127.0.0.1:{closed.getsockname()[1]}")
    assert finding.severity is Severity.BLOCKS
    assert "nobody listens" in finding.found


def test_one_screen_and_an_exit_code() -> None:
    said: list[str] = []
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        code = doctor.run_doctor(f"127.0.0.1:{closed.getsockname()[1]}", said.append)
    assert code == 1
    assert said[-1].startswith("This computer cannot run Proteus yet: ")
    assert len(said) <= 24
    assert all(
        subject in "\n".join(said)
        for subject in ("Python", "Memory", "/dev/shm", "Encryption", "GPUs", "Ports")
    )


@pytest.mark.slow
@pytest.mark.cluster
def test_ray_starts_here() -> None:
    assert doctor.check_ray_starts().severity is Severity.OK
