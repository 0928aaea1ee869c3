"""Files of certificates: what is wrong with one is said in a sentence that names it."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.server.features.nodes.tls.certificates import (
    NEARLY_OVER,
    NOW,
    TOMORROW,
    YEARS_AGO,
    write_gateway_certificate,
    write_node_certificate,
    write_private,
)
from toolgate.server.features.nodes.tls import authority
from toolgate.server.features.nodes.tls.certificate_file import GATEWAY, NODE, CertificateFile
from toolgate.server.features.nodes.tls.errors import CertificateError

HOST = "node.example.com"


def test_each_side_reads_its_own_file(tmp_path: Path) -> None:
    node = CertificateFile(write_node_certificate(tmp_path, HOST, "::1"), NODE)
    gateway = CertificateFile(write_gateway_certificate(tmp_path), GATEWAY)
    for side in (node, gateway):
        assert side.get_context().minimum_version == ssl.TLSVersion.TLSv1_3
        assert side.get_context().verify_mode == ssl.CERT_REQUIRED
        assert len(side.get_context().get_ca_certs()) == 1
        assert side.count_days() in (authority.DAYS - 1, authority.DAYS)
        assert side.describe_end() is None
    assert gateway.get_context().check_hostname


def test_the_key_of_the_authority_is_in_no_sides_file(tmp_path: Path) -> None:
    files = [write_node_certificate(tmp_path, HOST), write_gateway_certificate(tmp_path)]
    keys = [
        file.read_bytes().partition(b"-----BEGIN CERTIFICATE")[0] for file in (*files, tmp_path / authority.AUTHORITY)
    ]
    assert len(set(keys)) == 3
    assert (tmp_path / authority.AUTHORITY).stat().st_mode & 0o777 == 0o600


def split(file: Path) -> tuple[bytes, bytes, bytes]:
    """Return a file's key, its certificate and the authority's."""
    key, own, issuer = file.read_bytes().split(b"-----BEGIN CERTIFICATE-----")
    return key, b"-----BEGIN CERTIFICATE-----" + own, b"-----BEGIN CERTIFICATE-----" + issuer


def stranger(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Return a file's parts with another authority."""
    other = folder / "other"
    other.mkdir(exist_ok=True)
    return split(write_gateway_certificate(other))


def own_key(folder: Path) -> bytes:
    """Return the authority's key."""
    return authority.Authority(folder, NOW).file.read_bytes().partition(b"-----BEGIN CERTIFICATE")[0]


Write = Callable[[Path], bytes]
DAMAGED: dict[str, tuple[Write, str]] = {
    "empty": (lambda _: b"", "has no private key"),
    "only the key": (lambda folder: split(write_gateway_certificate(folder))[0], "is damaged"),
    "no authority": (lambda folder: b"".join(split(write_gateway_certificate(folder))[:2]), "no authority in it"),
    "another authority": (
        lambda folder: b"".join((*split(write_gateway_certificate(folder))[:2], stranger(folder)[2])),
        "no authority in it",
    ),
    "another key": (
        lambda folder: b"".join((stranger(folder)[0], *split(write_gateway_certificate(folder))[1:])),
        "its key is not that of its first certificate",
    ),
    "half": (lambda folder: write_gateway_certificate(folder).read_bytes()[:900], "no authority in it"),
    "the authority for itself": (
        lambda folder: b"".join(split(write_gateway_certificate(folder))[2:] * 2) + own_key(folder),
        "is not a gateway's certificate",
    ),
    "a password": (
        lambda folder: serialization.load_pem_private_key(own_key(folder), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        ),
        "its key has a password",
    ),
    "no PEM inside": (
        lambda _: b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n",
        "is damaged",
    ),
    "the node's": (lambda folder: write_node_certificate(folder, HOST).read_bytes(), "is not a gateway's certificate"),
    "the authority's": (
        lambda folder: (folder / authority.Authority(folder, NOW).file).read_bytes(),
        "no authority in it",
    ),
    "expired": (
        lambda folder: write_gateway_certificate(folder, YEARS_AGO).read_bytes(),
        "has expired: toolgate node certificate --replace",
    ),
    "not yet valid": (
        lambda folder: write_gateway_certificate(folder, TOMORROW).read_bytes(),
        "is not valid yet: compare this machine",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_can_not_be_used_is_refused_by_name(tmp_path: Path, case: str) -> None:
    write, reason = DAMAGED[case]
    file = write_private(tmp_path / "tried.pem", write(tmp_path))
    with pytest.raises(CertificateError, match=f"^{file}.*{reason}"):
        CertificateFile(file, GATEWAY)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = write_gateway_certificate(tmp_path)
    file.chmod(mode)
    with pytest.raises(CertificateError, match="a key that others can read or change"):
        CertificateFile(file, GATEWAY)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, reason in (("missing", "no such file"), ("", "directory|not a file"), ("pipe", "is not a file")):
        with pytest.raises(CertificateError, match=reason):
            CertificateFile(tmp_path / name, GATEWAY)


def test_a_replaced_file_is_used_for_the_next_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_gateway_certificate(tmp_path)
    gateway = CertificateFile(file, GATEWAY)
    first = gateway.get_context()
    assert gateway.get_context() is first
    write_gateway_certificate(tmp_path, name="next.pem").rename(file)
    second = gateway.get_context()
    assert second is not first
    write_private(tmp_path / "bad", b"").rename(file)
    assert gateway.get_context() is second
    assert gateway.get_context() is second
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} has no private key: toolgate node certificate makes such files; the certificate before it stays in use"
    ]


def test_a_peer_must_say_what_its_certificate_is_for(tmp_path: Path) -> None:
    """OpenSSL takes one that names no purpose for any, as the authority's is."""
    node = CertificateFile(write_node_certificate(tmp_path, HOST), NODE)
    gateway = CertificateFile(write_gateway_certificate(tmp_path), GATEWAY)
    (none,) = node.get_context().get_ca_certs(binary_form=True)
    for side, certificate in ((node, none), (gateway, none), (node, None)):
        with pytest.raises(CertificateError, match="its certificate is not a"):
            side.check_peer(certificate)
    for side in (node, gateway):
        side.check_peer(ssl.PEM_cert_to_DER_cert(split(side.path)[1].decode()))


def test_an_end_that_is_near_is_said(tmp_path: Path) -> None:
    gateway = CertificateFile(write_gateway_certificate(tmp_path, NEARLY_OVER), GATEWAY)
    assert f"{gateway.path} ends in {gateway.count_days()} days" in str(gateway.describe_end())
    assert gateway.count_days() in (19, 20)
