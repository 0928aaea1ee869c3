"""Name the error of a certificate, for those who do not load TLS."""


class CertificateError(Exception):
    """A certificate can't be used; the text names whose it is."""
