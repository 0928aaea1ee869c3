"""Say why a connection by TLS failed: which side's certificate it was, and what to do."""

import ssl

from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.tls.errors import EXPIRED, NOT_YET_VALID, PURPOSE, WRONG_NAME

MAKE = "toolgate node certificate"
NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)


def describe_node_failure(error: ssl.SSLError, address: NodeAddress) -> str:
    """Return why the gateway has no connection to the node."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_node_certificate(error, address)
    reason = error.reason or ""
    if reason in NO_TLS:
        return "what answers there does not speak TLS, as a node does"
    return f"TLS failed ({_word(error)})"


def describe_gateway_failure(error: Exception) -> str:
    """Return why the node has refused a connection."""
    if isinstance(error, ConnectionAbortedError):
        return "no certificate in time"
    if not isinstance(error, ssl.SSLError):
        return str(error) or "it closed the connection"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it has no certificate"
        return f"TLS failed ({_word(error)})"
    known = {EXPIRED: "its certificate has expired", PURPOSE: "its certificate is not a gateway's"}
    return known.get(error.verify_code, f"its certificate is not accepted: {error.verify_message}")


def _describe_node_certificate(error: ssl.SSLCertVerificationError, address: NodeAddress) -> str:
    code = error.verify_code
    if code == EXPIRED:
        return f"the node's certificate has expired: {MAKE} --replace {address.host} makes another"
    if code == NOT_YET_VALID:
        return "the node's certificate is not valid yet: compare the two machines' clocks"
    if code == PURPOSE:
        return f"the other side's certificate is not a node's: {MAKE} {address.host} makes one"
    if code in WRONG_NAME:
        return f"the node's certificate is not for {address.host}: {MAKE} {address.host} makes one"
    return f"the node's certificate is not accepted ({error.verify_message}): make both with one authority"


def _word(error: ssl.SSLError) -> str:
    return (error.reason or "no reason").lower().replace("_", " ")
