"""Certificates for the tests of nodes at HOST:PORT, good and bad ones."""

import datetime
import ssl
from pathlib import Path

from toolgate.server.features.nodes.tls.authority import DAYS, Authority

NOW = datetime.datetime.now(datetime.UTC)
YEARS_AGO = NOW - datetime.timedelta(days=3 * 365)  # what was issued then has expired
NEARLY_OVER = NOW - datetime.timedelta(days=DAYS - 20)  # what was issued then ends in 20 days
TOMORROW = NOW + datetime.timedelta(days=1)


def write_private(file: Path, data: bytes) -> Path:
    file.touch(mode=0o600)
    file.write_bytes(data)
    return file


def write_node_certificate(folder: Path, *hosts: str, now: datetime.datetime = NOW, name: str = "node.pem") -> Path:
    return write_private(folder / name, Authority(folder, now).issue_node(hosts))


def write_gateway_certificate(folder: Path, now: datetime.datetime = NOW, name: str = "gateway.pem") -> Path:
    return write_private(folder / name, Authority(folder, now).issue_gateway())


class UncheckedCertificate:
    """Stands in for a CertificateFile: it uses `file` whatever is in it, and trusts the authority of `folder`."""

    def __init__(self, file: Path, folder: Path, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> None:
        self._context = ssl.SSLContext(protocol)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_verify_locations(Authority(folder, NOW).file)
        self._context.load_cert_chain(file)

    def get_context(self) -> ssl.SSLContext:
        return self._context

    def check_peer(self, certificate: bytes | None) -> None:
        assert certificate
