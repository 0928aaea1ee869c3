"""Name the errors of certificates, for those who do not load TLS too."""

EXPIRED, NOT_YET_VALID, PURPOSE = 10, 9, 26  # X509_V_ERR_ of OpenSSL
WRONG_NAME = (62, 64)  # a host's name, an address


class CertificateError(Exception):
    """A certificate can't be used; the text names whose it is."""
