"""Make the certificates of a node and its gateways, with an authority of their own that is kept for the next ones."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from toolgate.server.features.nodes.tls.errors import CertificateError
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.regular_file import read_regular

AUTHORITY = "node-authority.pem"
GATEWAY = "gateway.pem"
AUTHORITY_DAYS = 3_650
DAYS = 730
MAX_FILE = 64 * 2**10  # bytes
SKEW = datetime.timedelta(hours=1)  # by which the other machine's clock may be behind
KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
PEM = serialization.Encoding.PEM

Key = ec.EllipticCurvePrivateKey


class Authority:
    """The key and certificate in the file `node-authority.pem` of `folder`, made if it is missing. `now` is when it
    issues certificates.

    Raises:
        CertificateError: the file is damaged, or its certificate ends.
        OSError: the folder can't be written.
    """

    def __init__(self, folder: Path, now: datetime.datetime) -> None:
        self.file = folder / AUTHORITY
        self._now = now
        if not self.file.exists():
            key_file.create_file(self.file, _create_authority(now))
        data = read_regular(self.file, MAX_FILE, follow=True)
        try:
            key = serialization.load_pem_private_key(data, None)
            (self.certificate,) = x509.load_pem_x509_certificates(data)
        except (ValueError, TypeError) as error:
            raise CertificateError(f"{self.file} is damaged: move it away, and make all certificates again") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{self.file} is not an authority that this command made: move it away")
        self._key = key
        if self.certificate.not_valid_after_utc < now + datetime.timedelta(days=DAYS):
            raise CertificateError(
                f"{self.file} ends on {self.certificate.not_valid_after_utc:%Y-%m-%d}, too soon for a certificate of "
                f"{DAYS} days: move it away, and make all certificates again"
            )

    def issue_node(self, hosts: Sequence[str]) -> bytes:
        """Return the file of a node with these names and addresses."""
        names = x509.SubjectAlternativeName([_to_name(host) for host in hosts])
        return self._issue(f"toolgate node {hosts[0]}"[:64], ExtendedKeyUsageOID.SERVER_AUTH, names)

    def issue_gateway(self) -> bytes:
        """Return the file of a gateway."""
        return self._issue("toolgate gateway", ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, name: str, purpose: x509.ObjectIdentifier, *extensions: x509.ExtensionType) -> bytes:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _begin(name, self.certificate.subject, key, self._now, DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_allow("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        own = builder.sign(self._key, hashes.SHA256())
        return _encode_key(key) + own.public_bytes(PEM) + self.certificate.public_bytes(PEM)


def write_file(file: Path, data: bytes, *, replace: bool) -> bool:
    """Write a private file. Return False for one that is there and not to be replaced. Raises OSError."""
    if os.path.lexists(file) and not replace:
        return False
    if replace:
        key_file.replace_file(file, data)
    else:
        key_file.create_file(file, data)
    return True


def _create_authority(now: datetime.datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("toolgate node authority")
    certificate = (
        _begin("toolgate node authority", name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_allow("key_cert_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _encode_key(key) + certificate.public_bytes(PEM)


def _begin(name: str, issuer: x509.Name, key: Key, now: datetime.datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _to_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.lower())


def _allow(usage: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each == usage for each in KEY_USAGES})


def _encode_key(key: Key) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
