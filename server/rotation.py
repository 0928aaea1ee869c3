"""New keys in place of those in STATE/keys that seal what comes back soon. Knows neither what signs tokens, which
`auth.keys` rotates, nor the key of the audit log, which lasts: with another one it could not be verified.
"""

from pathlib import Path

from toolgate.server import keyfile, seal
from toolgate.server.auth.issuing import questions

LAST = {  # key file → seconds that what an earlier key has sealed may still come back
    "request-state": float(seal.LIFETIME),
    "questions": questions.LIFETIME,
}


def rotate(state: Path, *, drop_old: bool) -> None:
    """A server that runs seals with the new ones from its next answer on. With `drop_old` nothing that was sealed
    before is taken back. Raises OSError."""
    for name, lasts in LAST.items():
        keyfile.rotate(state / "keys" / name, 0 if drop_old else lasts)
