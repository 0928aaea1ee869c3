"""Read the file of one side, with its key, its certificate and the authority, and make TLS contexts of it.

The authority in the file is the only one: the system's are not used. A certificate is for one side, by its extended key
usage (RFC 5280, 4.2.1.12), so that a node's can't act as a gateway.
"""

import asyncio
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from toolgate.server.node.tls.errors import CertificateError
from toolgate.server.text import describe_os_error

MAX_FILE = 2**18  # bytes; a key and two certificates take 3,000
WARN = 30  # days before the end of a certificate
DAY = 86_400
KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)
PEM = serialization.Encoding.PEM

log = logging.getLogger("toolgate.node")


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a connection: what it is called, its role in TLS, and what its certificate must be for."""

    name: str
    protocol: int
    purpose: x509.ObjectIdentifier


NODE = Side("node", ssl.PROTOCOL_TLS_SERVER, ExtendedKeyUsageOID.SERVER_AUTH)
GATEWAY = Side("gateway", ssl.PROTOCOL_TLS_CLIENT, ExtendedKeyUsageOID.CLIENT_AUTH)
OTHER = {NODE: GATEWAY, GATEWAY: NODE}


class CertificateFile:
    """The file at `path` of this `side`. A file that replaces it is used for the next connection.

    Raises:
        CertificateError: the file can't be read or used.
    """

    def __init__(self, path: Path, side: Side) -> None:
        self.path = path
        self.side = side
        self._identity = (0, 0)
        self._load()

    def get_context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection. A file that can't be used any more leaves the one before."""
        try:
            self._load()
        except CertificateError as error:
            log.warning("%s; the certificate before it stays in use", error)
        return self._context

    def check_peer(self, certificate: bytes | None) -> None:
        """Raise CertificateError if the other side's certificate (DER) is not for it."""
        other = OTHER[self.side]
        if certificate is None or not _is_for(x509.load_der_x509_certificate(certificate), other):
            raise CertificateError(f"its certificate is not a {other.name}'s: make one with toolgate node certificate")

    def count_days(self) -> int:
        """Return how many days the certificate is valid."""
        return int((self._ends_at - time.time()) // DAY)

    def describe_end(self) -> str | None:
        """Return that the certificate ends soon, or None."""
        days = self.count_days()
        if days >= WARN:
            return None
        return f"{self.path} expires in {max(days, 0)} days: toolgate node certificate --replace makes another"

    async def watch_end(self) -> None:
        """Log once a day that the certificate ends soon, until cancelled."""
        while True:
            text = self.describe_end()
            if text is not None:
                log.warning("--node-certificate: %s", text)
            await asyncio.sleep(DAY)

    def _load(self) -> None:
        """Read the file if it is another than before."""
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_ino, status.st_mtime_ns)
                if identity == self._identity:
                    return
                self._identity = identity
                _check_mode(self.path, status)
                data = file.read(MAX_FILE)
        except OSError as error:
            self._identity = (0, 0)
            raise CertificateError(describe_os_error(error)) from None
        own, authorities = _read_certificates(self.path, data)
        _check_use(self.path, own, self.side)
        if not any(_is_signed_by(own, authority) for authority in authorities):
            raise CertificateError(f"{self.path}: no authority in it has signed its certificate")
        self._context = self._build_context(authorities)
        self._ends_at = own.not_valid_after_utc.timestamp()

    def _build_context(self, authorities: Sequence[x509.Certificate]) -> ssl.SSLContext:
        context = ssl.SSLContext(self.side.protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED  # with the host's name at a gateway: PROTOCOL_TLS_CLIENT
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if self.side is NODE:
            context.num_tickets = 0  # each connection shows its certificate again
        try:
            context.load_verify_locations(cadata="".join(each.public_bytes(PEM).decode() for each in authorities))
            context.load_cert_chain(self.path, password=_refuse_password)
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            raise CertificateError(f"{self.path}: its key and its certificate do not fit") from None
        return context


def _check_mode(path: Path, status: os.stat_result) -> None:
    """Raise CertificateError for a file that others may read. Root's may have a group, as a mounted secret has."""
    if not stat.S_ISREG(status.st_mode):
        raise CertificateError(f"{path} is not a file")
    is_roots = status.st_uid == 0 and os.geteuid() != 0
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (0o027 if is_roots else 0o077):
        raise CertificateError(f"{path} has a key that others can read or change: chown it to this user, and chmod 600")


def _read_certificates(path: Path, data: bytes) -> tuple[x509.Certificate, list[x509.Certificate]]:
    """Return the file's own certificate and those of authorities."""
    key = KEY.search(data)
    if key is None:
        raise CertificateError(f"{path} has no private key: toolgate node certificate makes such files")
    try:
        private = serialization.load_pem_private_key(key[0], None)
        own, *authorities = x509.load_pem_x509_certificates(data)
        fits = own.public_key() == private.public_key()
    except TypeError:
        raise CertificateError(f"{path}: its key has a password, which nothing can type: remove it") from None
    except Exception as error:  # the library has several of its own
        raise CertificateError(f"{path} is damaged: toolgate node certificate makes such files") from error
    if not fits:
        raise CertificateError(f"{path}: its key is not that of its first certificate")
    return own, authorities


def _check_use(path: Path, own: x509.Certificate, side: Side) -> None:
    if not _is_for(own, side):
        other = OTHER[side].name
        whose = f"a {other}'s certificate" if _is_for(own, OTHER[side]) else "a certificate for something else"
        raise CertificateError(f"{path} is {whose}: a {side.name} needs its own, from toolgate node certificate")
    now = time.time()
    if own.not_valid_after_utc.timestamp() <= now:
        day = own.not_valid_after_utc.strftime("%Y-%m-%d")
        raise CertificateError(f"{path} expired on {day}: toolgate node certificate --replace makes another")
    if own.not_valid_before_utc.timestamp() > now:
        day = own.not_valid_before_utc.strftime("%Y-%m-%d %H:%M")
        raise CertificateError(f"{path} is valid from {day} UTC on: compare this machine's clock")


def _is_for(certificate: x509.Certificate, side: Side) -> bool:
    try:
        return side.purpose in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001  # each kind of key has its own errors
        return False
    return True


def _refuse_password() -> bytes:
    raise ValueError("the key has a password")
