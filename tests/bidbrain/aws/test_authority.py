"""Certificates of a stack's hosts, against Python's own TLS: who is believed, and who is not."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509

from bidbrain.aws.stack.authority import SKEW, VALID, Authority, AuthorityError, HostCertificate

NOW_S = float(int(time.time()))  # TLS asks the clock of this computer
SSM_LIMIT_CHARACTERS = 4096  # of a standard parameter's value
IP = "10.0.0.9"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.made("demo", NOW_S)


def context(
    purpose: ssl.Purpose, authority: Authority, shown: HostCertificate, folder: Path
) -> ssl.SSLContext:
    """One end of a connection that demands a certificate of `authority` and shows `shown`."""
    file = folder / f"{purpose.name}.pem"
    file.write_bytes(shown.certificate + shown.key)
    made = ssl.create_default_context(purpose, cadata=authority.certificate.decode())
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(file)
    return made


def connect(client: ssl.SSLContext, server: ssl.SSLContext, ip: str) -> None:
    """A handshake without a network, then one message. Raises SSLError of the side that refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname=ip)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for each in (asks, answers, asks, answers):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
    asks.write(b"token")
    assert answers.read(5) == b"token"


def test_hosts_of_one_authority_believe_each_other(authority: Authority, tmp_path: Path) -> None:
    client = context(ssl.Purpose.SERVER_AUTH, authority, authority.issued("10.0.0.5", NOW_S), tmp_path)
    server = context(ssl.Purpose.CLIENT_AUTH, authority, authority.issued(IP, NOW_S), tmp_path)
    for ip in (IP, "127.0.0.1"):
        connect(client, server, ip)


def test_a_certificate_is_worth_nothing_at_another_address(authority: Authority, tmp_path: Path) -> None:
    client = context(ssl.Purpose.SERVER_AUTH, authority, authority.issued("10.0.0.5", NOW_S), tmp_path)
    server = context(ssl.Purpose.CLIENT_AUTH, authority, authority.issued(IP, NOW_S), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        connect(client, server, "10.0.0.8")


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_host_of_another_cluster_is_refused_at_either_end(
    authority: Authority, tmp_path: Path, side: str
) -> None:
    """A cluster of the same name, made again: what was issued before is worth nothing."""
    before = Authority.made("demo", NOW_S).issued(IP, NOW_S)
    shown = {"client": authority.issued(IP, NOW_S), "server": authority.issued(IP, NOW_S), side: before}
    client = context(ssl.Purpose.SERVER_AUTH, authority, shown["client"], tmp_path)
    server = context(ssl.Purpose.CLIENT_AUTH, authority, shown["server"], tmp_path)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(client, server, IP)


def test_a_host_cannot_issue(authority: Authority, tmp_path: Path) -> None:
    host = authority.issued(IP, NOW_S)
    forged = Authority(host.certificate, host.key).issued("10.0.0.5", NOW_S)
    chain = HostCertificate(forged.certificate + host.certificate, forged.key)
    client = context(ssl.Purpose.SERVER_AUTH, authority, authority.issued(IP, NOW_S), tmp_path)
    server = context(ssl.Purpose.CLIENT_AUTH, authority, chain, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        connect(client, server, "10.0.0.5")


def test_its_text_is_small_enough_for_a_parameter_and_reads_back(authority: Authority) -> None:
    text = authority.text()
    assert len(text) <= SSM_LIMIT_CHARACTERS
    assert Authority.parsed(text) == authority
    assert "PRIVATE" not in repr(authority) and "PRIVATE" not in repr(authority.issued(IP, NOW_S))


@pytest.mark.parametrize("broken", ["nothing", "half", "mixed"])
def test_what_is_no_authority_is_one_sentence(authority: Authority, broken: str) -> None:
    text = {
        "nothing": "nonsense",
        "half": authority.certificate.decode(),
        "mixed": authority.certificate.decode() + Authority.made("demo", NOW_S).key.decode(),
    }[broken]
    with pytest.raises(AuthorityError, match="the cluster's authority: ") as caught:
        Authority.parsed(text)
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize("later_s", [-3600.0, 0.0, 200 * 86400.0])
def test_a_host_is_believed_as_long_as_its_authority(authority: Authority, later_s: float) -> None:
    """Also by a clock an hour behind that of whoever made the authority."""
    made, host = (
        x509.load_pem_x509_certificate(each.certificate)
        for each in (authority, authority.issued(IP, NOW_S + later_s))
    )
    assert made.not_valid_before_utc <= host.not_valid_before_utc < host.not_valid_after_utc
    assert host.not_valid_after_utc == made.not_valid_after_utc
    assert made.not_valid_after_utc - made.not_valid_before_utc == VALID + SKEW
    assert host.not_valid_before_utc.timestamp() <= NOW_S + later_s
