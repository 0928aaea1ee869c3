"""Valid and forged tokens with their keys: what a verifier must accept, and every attack it must refuse."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from joserfc.jwk import OKPKey, RSAKey

from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey
from toolgate.server.base.principals.principal import Principal

ISSUER = "https://tools.example"
AUDIENCE = (f"{ISSUER}/mcp", f"{ISSUER}/sse")
THEIRS = "https://login.example/realms/a"
START = 1_800_000_000.0

KEY, OTHER = jose.generate_key(), jose.generate_key()
RSA = JoseKey("rsa-1", "RS256", RSAKey.generate_key(2048))
WEAK = {"kty": "RSA", "n": base64.urlsafe_b64encode(b"\xc1" * 128).decode().rstrip("="), "e": "AQAB"}
EDWARDS = JoseKey("ed-1", "Ed25519", OKPKey.generate_key("Ed25519"))


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def good(issuer: str = ISSUER, **other: Any) -> dict[str, Any]:
    claims = {
        "iss": issuer,
        "aud": AUDIENCE[0],
        "sub": "ada",
        "client_id": "c",
        "scope": "tools:read tools:web",
        "iat": START,
        "exp": START + 900,
        "jti": "j-1",
        **other,
    }
    return {name: value for name, value in claims.items() if value is not None}


def packed(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


async def refused(verify: Callable[[str], Awaitable[Principal]], tokens: Iterable[str]) -> None:
    for token in tokens:
        with pytest.raises(InvalidTokenError) as caught:
            await verify(token)
        assert len(token) < 20 or token[-20:] not in str(caught.value)


CLAIMS: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "https://other.example/mcp"},
    "the bare origin": {"aud": ISSUER},
    "a longer path": {"aud": f"{ISSUER}/mcp/admin"},
    "a slash more": {"aud": f"{ISSUER}/mcp/"},
    "another case": {"aud": f"{ISSUER}/MCP"},
    "no audience": {"aud": None},
    "an empty audience": {"aud": []},
    "an audience besides": {"aud": [AUDIENCE[0], "https://other.example/mcp"]},
    "an audience that is an object": {"aud": {AUDIENCE[0]: 1}},
    "an audience of numbers": {"aud": [7]},
    "another issuer": {"iss": "https://evil.example"},
    "an issuer with a slash": {"iss": f"{ISSUER}/"},
    "no issuer": {"iss": None},
    "a list of issuers": {"iss": [ISSUER]},
    "expired": {"exp": START - 100},
    "expired this second": {"exp": START},
    "no end": {"exp": None},
    "an end in words": {"exp": "tomorrow"},
    "an end that is true": {"exp": True},
    "an end beyond all time": {"exp": 1e300},
    "not yet": {"nbf": START + 120},
    "not yet in words": {"nbf": "now"},
    "from the future": {"iat": START + 120},
    "nobody": {"sub": None},
    "an empty name": {"sub": ""},
    "a name that is a number": {"sub": 1001},
    "a name that never ends": {"sub": "x" * 2_000},
    "bound to a key": {"cnf": {"jkt": "abc"}},
    "no id": {"jti": None},
    "an id that is a number": {"jti": 5},
}


def forged(header: dict[str, Any], claims: Any = None, signature: bytes | None = b"x" * 64) -> str:
    body = f"{packed(header)}.{packed(good() if claims is None else claims)}"
    return f"{body}.{packed(signature) if signature is not None else ''}"


def hmac_with_public_key(kid: str) -> str:
    """Sign with HS256 and the public key as its secret, which a verifier that trusts `alg` would accept."""
    header = {"typ": "at+jwt", "alg": "HS256", "kid": kid}
    body = f"{packed(header)}.{packed(good())}"
    secret = KEY.material.as_pem(private=False)
    return f"{body}.{packed(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"


def with_header(**more: Any) -> str:
    """Sign validly with our own key, but with other members in the header."""
    from joserfc import jws

    header = {"typ": "at+jwt", "alg": "ES256", "kid": KEY.kid, **more}
    body = f"{packed(header)}.{packed(good())}".encode()
    signed = jws.JWSRegistry(algorithms=["ES256"]).get_alg("ES256").sign(body, KEY.material)
    return f"{body.decode()}.{packed(signed)}"


def with_noise() -> str:
    """Sign validly, but add characters that a lenient parser ignores."""
    from joserfc import jws

    head = packed({"typ": "at+jwt", "alg": "ES256", "kid": KEY.kid})
    body = f"{head[:8]}!{head[8:]}.{packed(good())}".encode()
    signed = jws.JWSRegistry(algorithms=["ES256"]).get_alg("ES256").sign(body, KEY.material)
    return f"{body.decode()}.{packed(signed)}"


GOOD = jose.sign(good(), KEY, "at+jwt")
HEAD, BODY, SIGNATURE = GOOD.split(".")
TRICKS = {
    "a header with what is no base64": with_noise(),
    "alg none": forged({"typ": "at+jwt", "alg": "none", "kid": KEY.kid}, signature=None),
    "alg none with a signature": forged({"typ": "at+jwt", "alg": "none", "kid": KEY.kid}),
    "alg None": forged({"typ": "at+jwt", "alg": "None", "kid": KEY.kid}),
    "alg empty": forged({"typ": "at+jwt", "alg": "", "kid": KEY.kid}),
    "no alg": forged({"typ": "at+jwt", "kid": KEY.kid}),
    "alg is a list": forged({"typ": "at+jwt", "alg": ["ES256"], "kid": KEY.kid}),
    "HS256 with the public key": hmac_with_public_key(KEY.kid),
    "ES384": forged({"typ": "at+jwt", "alg": "ES384", "kid": KEY.kid}),
    "RS256 by a key of ours": forged({"typ": "at+jwt", "alg": "RS256", "kid": KEY.kid}),
    "signed by another key": jose.sign(good(), JoseKey(KEY.kid, "ES256", OTHER.material), "at+jwt"),
    "unknown kid": jose.sign(good(), OTHER, "at+jwt"),
    "no kid": forged({"typ": "at+jwt", "alg": "ES256"}),
    "kid is a path": forged({"typ": "at+jwt", "alg": "ES256", "kid": "../../dev/null"}),
    "kid is an object": forged({"typ": "at+jwt", "alg": "ES256", "kid": {"a": 1}}),
    "jwk": with_header(jwk=OTHER.to_public_jwk()),
    "jku": with_header(jku="https://evil.example/jwks"),
    "x5u": with_header(x5u="https://evil.example/cert"),
    "x5c": with_header(x5c=["MIIB"]),
    "crit": with_header(crit=["exp"]),
    "crit of something unknown": with_header(crit=["b64"], b64=False),
    "zip": with_header(zip="DEF"),
    "enc": with_header(enc="A256GCM"),
    "a changed claim": f"{HEAD}.{packed(good(scope='tools:shell'))}.{SIGNATURE}",
    "no signature": f"{HEAD}.{BODY}.",
    "two parts": f"{HEAD}.{BODY}",
    "four parts": f"{GOOD}.{SIGNATURE}",
    "five parts": f"{GOOD}.{HEAD}.{BODY}",
    "a null signature": f"{HEAD}.{BODY}.{packed(bytes(64))}",
    "a short signature": f"{HEAD}.{BODY}.{SIGNATURE[:-8]}",
    "a padded part": f"{HEAD}=.{BODY}.{SIGNATURE}",
    "other characters": f"{HEAD}.{BODY}.{SIGNATURE[:-1]}+",
    "no JSON header": f"{packed(b'hello')}.{BODY}.{SIGNATURE}",
    "a list for a header": f"{packed([1])}.{BODY}.{SIGNATURE}",
    "deep JSON": f"{packed(b'[' * 5_000)}.{BODY}.{SIGNATURE}",
    "a list for claims": jose.sign({}, KEY, "at+jwt").split(".")[0] + f".{packed([1])}.{SIGNATURE}",
    "empty": "",
    "dots": "..",
    "not ASCII": "é.é.é",
    "too long": f"{HEAD}.{'x' * 20_000}.{SIGNATURE}",
    "an opaque token": "2YotnFZFEjr1zCsicMWpAA",
}
