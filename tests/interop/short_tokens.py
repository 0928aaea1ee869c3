"""The command `toolgate`, with access tokens that last for seconds: a test can wait for one to end."""

import sys
from typing import Any

from toolgate.server.auth.tokens import access_tokens

SECONDS, EARLY = 8, 7  # their lifetime, and how much shorter clients are told it is


class Hasty(access_tokens.OwnTokens):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **{**more, "lifetime": SECONDS})


if __name__ == "__main__":
    access_tokens.EXPIRY_MARGIN = EARLY
    access_tokens.OwnTokens = Hasty  # type: ignore[misc]  # before server/auth/setup.py looks for it
    from toolgate.server.__main__ import main

    sys.exit(main())
