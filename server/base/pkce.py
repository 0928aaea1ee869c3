"""Prove that whoever redeems a code has asked for it (PKCE, RFC 7636)."""

import base64
import hashlib


def create_challenge(verifier: str) -> dict[str, str]:
    """Return what a request for a code says of its verifier (section 4.3)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return {"code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="), "code_challenge_method": "S256"}
