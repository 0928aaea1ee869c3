"""Replace the keys in STATE/keys that seal what comes back soon.

`auth.tokens.signing_keys` rotates the keys that sign tokens. The key of the audit log is never rotated: the log could
not be verified with another one.
"""

from pathlib import Path

from toolgate.server.auth.oauth_server import consent_requests
from toolgate.server.state import key_file, sealed_state

LIFETIMES = {  # key file → seconds that what an earlier key has sealed may still come back
    "request-state": float(sealed_state.LIFETIME),
    "questions": consent_requests.LIFETIME,
}


def rotate_sealing_keys(state: Path, *, drop_old: bool) -> None:
    """A server that runs seals with the new ones from its next answer on. With `drop_old` nothing that was sealed
    before is taken back. Raises OSError."""
    for name, lasts in LIFETIMES.items():
        key_file.rotate_key(state / "keys" / name, 0 if drop_old else lasts)
