"""A mounted server whose authorization server gives tokens to clients: strict, and with faults to order."""

import base64
import contextlib
import http.server
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_plus

from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, create_handler, serve

CLIENT = "ours"
SECRET = "s3cret: of the team/%+ü"


class FarGrants(FarSignIn):
    """What it knows and counts beside a FarSignIn. `subjects`: secret → who a token is for; `methods`: how it takes
    secrets; `asked`: the forms that its token endpoint got, with the way of the secret."""

    def __init__(self) -> None:
        super().__init__()
        self.subjects = {SECRET: "the-team"}
        self.methods = ["basic", "post"]
        self.asked: list[dict[str, str]] = []

    def identify(self, asked: dict[str, str], given: str) -> str | None:
        """Return the secret of the client that asks, if it shows it right."""
        way, id, secret = "post", asked.pop("client_id", ""), asked.pop("client_secret", "")
        if given.startswith("Basic "):
            assert not secret
            way = "basic"
            id, _, secret = base64.b64decode(given[6:]).decode().partition(":")
            id, secret = unquote_plus(id), unquote_plus(secret)
        self.asked.append({**asked, "way": way})
        return secret if id == CLIENT and secret in self.subjects and way in self.methods else None


def create_granting_handler(far: FarGrants) -> type[http.server.BaseHTTPRequestHandler]:
    handler: Any = create_handler(far)

    class GrantingHandler(handler):  # type: ignore[misc]  # a class that a function makes
        def _token(self, asked: dict[str, str], given: str) -> None:
            secret = far.identify(asked, given)
            time.sleep(far.refresh_takes)
            if far.answers:
                self._send(*far.answers.pop(0))
            elif secret is None:
                self._send(401, {"error": "invalid_client"})
            else:
                self._send(200, far.issue(find_subject(far, asked, secret), asked.get("scope", "")))

    return GrantingHandler


def find_subject(far: FarGrants, asked: dict[str, str], secret: str) -> str:
    """Return who a token is for: the client, or the person whose ID token or grant it has."""
    match asked["grant_type"].rpartition(":")[2]:
        case "client_credentials":
            return far.subjects[secret]
        case "token-exchange":
            assert asked["requested_token_type"] == "urn:ietf:params:oauth:token-type:access_token", asked
            claims = read_claims(asked["subject_token"])
        case "jwt-bearer":
            claims = read_claims(asked["assertion"])
            assert (claims["aud"], claims["resource"], claims["client_id"]) == (far.origin, asked["resource"], CLIENT)
        case other:
            raise AssertionError(other)
    assert claims["exp"] > time.time()
    return f"{claims['sub']}-there"


def read_claims(token: str) -> dict[str, Any]:
    """Return what a token says, whoever signed it."""
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


@contextlib.contextmanager
def far_grants() -> Iterator[FarGrants]:
    far = FarGrants()
    with serve(far, create_granting_handler(far)):
        yield far
