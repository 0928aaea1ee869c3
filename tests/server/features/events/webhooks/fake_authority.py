"""A certificate authority for tests, and certificates by it: for receivers of webhooks on loopback."""

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
DAY = datetime.timedelta(days=1)


class FakeAuthority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        self._key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self.certificate = (
            _begin(self._name, self._name, self._key, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(self._key_id, critical=False)
            .add_extension(x509.KeyUsage(*(name == "key_cert_sign" for name in KEY_USAGES)), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def trust(self) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority alone."""
        return ssl.create_default_context(cadata=self.certificate.public_bytes(PEM).decode())

    def write(self) -> Path:
        """Write its certificate to a file, and return that."""
        path = self._folder / "authority.pem"
        path.write_bytes(self.certificate.public_bytes(PEM))
        return path

    def issue(self, *hosts: str, left: datetime.timedelta = DAY) -> ssl.SSLContext:
        """Return the context of a server with these names; `left` is its certificate's remaining time."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id)
        builder = _begin(subject, self._name, key, left)
        for extension in (names, issuer):  # Python 3.13 wants the issuer's key named
            builder = builder.add_extension(extension, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{hosts[0]}.pem"
        plain = serialization.NoEncryption()
        path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain) + signed.public_bytes(PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, left: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + left)
    )
