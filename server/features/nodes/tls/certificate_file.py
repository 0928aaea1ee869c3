"""Read the file of one side, with its key, its certificate and the authority, and make TLS contexts of it.

The authority in the file is the only one: the system's are not used. A certificate is for one side, by its extended key
usage (RFC 5280, 4.2.1.12), so that a node's can't act as a gateway. OpenSSL judges them: a library that parses them
would take 9 MB of a node's memory.
"""

import asyncio
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolgate.server.base.text import describe_os_error
from toolgate.server.features.nodes.tls.errors import EXPIRED, NOT_YET_VALID, PURPOSE, CertificateError
from toolgate.server.state.keys.file import is_private

MAX_FILE = 2**18  # bytes; a key and two certificates take 3,000
WARN = 30  # days before the end of a certificate
DAY = 86_400
KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
NAMES_PURPOSES = bytes.fromhex("0603551d25")  # the identifier of the extension for them, in DER
STEPS = 10  # of a handshake with oneself: three are enough

log = logging.getLogger("toolgate.node")


class Side(msgspec.Struct, frozen=True):
    """One side of a connection: what it and the other are called, and its role in TLS."""

    name: str
    other: str
    protocol: int


NODE = Side("node", "gateway", ssl.PROTOCOL_TLS_SERVER)
GATEWAY = Side("gateway", "node", ssl.PROTOCOL_TLS_CLIENT)


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
        """Raise CertificateError if the other side's certificate (DER) names no purposes. If it does, the handshake has
        checked that it is for the other side."""
        if certificate is None or NAMES_PURPOSES not in certificate:
            other = self.side.other
            raise CertificateError(f"its certificate is not a {other}'s: make one with toolgate node certificate")

    def count_days(self) -> int:
        """Return how many days the certificate is valid."""
        return int((self._ends_at - time.time()) // DAY)

    @property
    def is_ending(self) -> bool:
        return self.count_days() < WARN

    def describe_end(self) -> str | None:
        """Return that the certificate ends soon, or None."""
        if not self.is_ending:
            return None
        days = max(0, self.count_days())
        return f"{self.path} ends in {days} days: toolgate node certificate --replace makes another"

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
                data = file.read(MAX_FILE).decode("ascii", "replace")
        except OSError as error:
            self._identity = (0, 0)
            raise CertificateError(describe_os_error(error)) from None
        authorities = _find_authorities(self.path, data)
        context = self._build_context(self.side.protocol, authorities)
        self._ends_at = self._check_own(authorities)
        self._context = context

    def _build_context(self, protocol: int, authorities: Sequence[str]) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED  # with the host's name at a gateway: PROTOCOL_TLS_CLIENT
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # each connection shows its certificate again
        try:
            context.load_verify_locations(cadata="\n".join(authorities))
            context.load_cert_chain(self.path, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                raise CertificateError(f"{self.path}: its key is not that of its first certificate") from None
            raise CertificateError(f"{self.path} is damaged: toolgate node certificate makes such files") from None
        except OSError as error:
            raise CertificateError(describe_os_error(error)) from None
        return context

    def _check_own(self, authorities: Sequence[str]) -> float:
        """Return when the certificate ends, in seconds since the epoch, as the other side would see it."""
        roles = {NODE: ssl.PROTOCOL_TLS_CLIENT, GATEWAY: ssl.PROTOCOL_TLS_SERVER}
        judge = self._build_context(roles[self.side], authorities)
        shown = self._build_context(self.side.protocol, authorities)
        for context in (judge, shown):
            context.check_hostname = False
        shown.verify_mode = ssl.CERT_NONE  # one handshake judges one side
        try:
            judged = _shake_hands(judge, shown, is_client=self.side is NODE)
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(self._describe_own(error)) from None
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"{self.path} can't be used: {error}") from None
        found = judged.getpeercert() or {}
        if NAMES_PURPOSES not in (judged.getpeercert(binary_form=True) or b""):
            raise CertificateError(f"{self.path} is not a {self.side.name}'s certificate: it names no purpose")
        return ssl.cert_time_to_seconds(str(found["notAfter"]))

    def _describe_own(self, error: ssl.SSLCertVerificationError) -> str:
        known = {
            EXPIRED: f"{self.path} has expired: toolgate node certificate --replace makes another",
            NOT_YET_VALID: f"{self.path} is not valid yet: compare this machine's clock",
            PURPOSE: f"{self.path} is not a {self.side.name}'s certificate: toolgate node certificate makes one",
        }
        return known.get(error.verify_code, f"{self.path}: no authority in it has signed its certificate")


def _check_mode(path: Path, status: os.stat_result) -> None:
    """Raise CertificateError for a file that others may read. Root's may have a group, as a mounted secret has."""
    if not stat.S_ISREG(status.st_mode):
        raise CertificateError(f"{path} is not a file")
    if not is_private(status):
        raise CertificateError(f"{path} has a key that others can read or change: chown it to this user, and chmod 600")


def _find_authorities(path: Path, data: str) -> list[str]:
    """Return the certificates of the authorities, which follow the file's own."""
    key, certificates = KEY.search(data), CERTIFICATE.findall(data)
    if key is None:
        raise CertificateError(f"{path} has no private key: toolgate node certificate makes such files")
    if "ENCRYPTED" in key[0]:
        raise CertificateError(f"{path}: its key has a password, which nothing can type: remove it")
    if not certificates:
        raise CertificateError(f"{path} is damaged: toolgate node certificate makes such files")
    if len(certificates) == 1:
        raise CertificateError(f"{path}: no authority in it has signed its certificate")
    return certificates[1:]


def _shake_hands(judge: ssl.SSLContext, shown: ssl.SSLContext, *, is_client: bool) -> ssl.SSLObject:
    """Return the judge's end of a connection in memory. Raises ssl.SSLError."""
    to_judge, to_shown = ssl.MemoryBIO(), ssl.MemoryBIO()
    judging = judge.wrap_bio(to_judge, to_shown, server_side=not is_client)
    waiting = [judging, shown.wrap_bio(to_shown, to_judge, server_side=is_client)]
    for _ in range(STEPS):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    if waiting:
        raise ValueError("a handshake without end")
    return judging


def _refuse_password() -> bytes:
    raise ValueError("the key has a password")
