"""Sign and verify JWTs, load their keys, and refuse all known attacks by headers.

Source: RFC 7515, 7517, 7518, 7519, 7638, 8725 (the pitfalls), 9068 (access tokens), 9864.
"""

import base64
import binascii
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

MAX_TOKEN = 16 * 1024  # characters: large providers' tokens, with groups, stay below 8 KiB
MAX_KEYS = 64  # of one key set; a provider has three or four
MIN_RSA, MAX_RSA = 2_048, 4_096  # bits (RFC 7518 section 3.3); larger keys make signatures expensive
MAX_EXPONENT = 2**32  # of an RSA key, for the same reason; 65537 is usual
LEEWAY = 60.0  # seconds two clocks may differ
ALLOWED_HEADERS = frozenset(("alg", "kid", "typ", "x5t", "x5t#S256", "cty"))  # others name keys or change the rules
SIGNING_ALGORITHM = "ES256"  # for our own tokens
ALGORITHMS = {  # accepted algorithm → its key type and curve
    "ES256": ("EC", "P-256"),
    "RS256": ("RSA", None),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
}
PRIVATE_MEMBERS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))  # private members of a JWK


class InvalidTokenError(Exception):
    """The token is invalid. The text says why in fixed words, and repeats nothing of the token."""


class UnknownKeyError(InvalidTokenError):
    """The key id is unknown: the issuer may have a new key."""


class JoseKey(msgspec.Struct, frozen=True, eq=False):
    """One key: its id, its algorithm and the library's object. `repr` shows only the id.

    `retired_at`: seconds since 1970 when our next key takes over; None if there is none yet.
    """

    kid: str
    algorithm: str
    material: Any
    retired_at: float | None = None

    def __repr__(self) -> str:
        return f"<key {self.kid} for {self.algorithm}>"

    @property
    def is_private(self) -> bool:
        return bool(self.material.is_private)

    def to_public_jwk(self) -> dict[str, Any]:
        """Return the public JWK, without any private member."""
        jwk = {key: value for key, value in self.material.as_dict(private=False).items() if key not in PRIVATE_MEMBERS}
        return {**jwk, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    def to_private_jwk(self) -> dict[str, Any]:
        """Return the JWK with its private part, for sealed storage only."""
        return {**self.material.as_dict(private=True), "kid": self.kid, "use": "sig", "alg": self.algorithm}


def generate_key() -> JoseKey:
    """Return a new key of ours; its id is its thumbprint (RFC 7638)."""
    from joserfc.jwk import ECKey  # start-up: only where people sign in

    key = ECKey.generate_key("P-256", private=True)
    return JoseKey(key.thumbprint(), SIGNING_ALGORITHM, key)


def load_key(jwk: Mapping[str, Any]) -> JoseKey:
    """Return the key of a JWK. Raises ValueError if it is malformed, too weak or of an unknown type."""
    from joserfc.errors import JoseError  # start-up, as above
    from joserfc.jwk import import_key

    algorithm = _algorithm_of(jwk)
    if algorithm == "RS256":
        _check_rsa(jwk)
    try:
        key = import_key({name: value for name, value in jwk.items() if isinstance(value, str)})
        kid = jwk.get("kid")
        return JoseKey(kid if isinstance(kid, str) and kid else key.thumbprint(), algorithm, key)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a usable key: {type(error).__name__}") from None


def parse_jwks(document: Any, most: int = MAX_KEYS) -> list[JoseKey]:
    """Return the usable keys of a JWKS document; others are skipped. Raises ValueError for another document, or one
    with more than `most` keys."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JWKS document")
    if len(listed) > most:
        raise ValueError(f"more than {most} keys")
    keys: list[JoseKey] = []
    for jwk in listed:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "k" in jwk:
            continue
        try:
            keys.append(load_key({name: value for name, value in jwk.items() if name not in PRIVATE_MEMBERS}))
        except ValueError:
            continue
    return keys


def format_jwks(keys: Iterable[JoseKey]) -> dict[str, Any]:
    """Return a JWKS document of our keys, public parts only."""
    return {"keys": [key.to_public_jwk() for key in keys]}


def sign(claims: Mapping[str, Any], key: JoseKey, typ: str) -> str:
    """Return a compact JWS of `claims`, signed in this thread."""
    from joserfc import jws  # start-up, as above

    header = {"typ": typ, "alg": key.algorithm, "kid": key.kid}
    return jws.serialize_compact(header, msgspec.json.encode(dict(claims)), key.material, algorithms=[key.algorithm])


def verify(
    token: str,
    keys: Sequence[JoseKey],
    *,
    typ: Collection[str] | None,
    algorithms: Collection[str],
    issuer: str,
    audience: Collection[str],
    own_audiences: Collection[str] = (),
    leeway: float = LEEWAY,
    now: float | None = None,
) -> dict[str, Any]:
    """Return the claims of `token` if all of it is valid.

    `typ`: the types its header may name, in lower case and without "application/"; "" stands for none; None is any.
    `audience`: the token must be for one of these, and for no other except `own_audiences`. It must have an expiry, and
    name its key if there are several. Raises UnknownKeyError, InvalidTokenError.
    """
    header = check_header(token, typ, algorithms, issuer)
    algorithm, kid = header["alg"], header.get("kid")
    fitting = [key for key in keys if ALGORITHMS[key.algorithm] == ALGORITHMS[algorithm] and kid in (None, key.kid)]
    if not fitting:
        raise UnknownKeyError("the key that signed the token is unknown")
    if kid is None and len(fitting) > 1:
        raise InvalidTokenError("the token does not name its key")
    claims = _payload(token, fitting, algorithm)
    _check_times(claims, leeway, time.time() if now is None else now)
    _check_audience(claims.get("aud"), audience, own_audiences)
    return claims


def check_header(token: str, typ: Collection[str] | None, algorithms: Collection[str], issuer: str) -> dict[str, Any]:
    """Return the header of a token that could be the issuer's, of these types and algorithms. Needs no key and verifies
    nothing. Raises InvalidTokenError."""
    header = read_header(token)
    if header["alg"] not in algorithms or header["alg"] not in ALGORITHMS:
        raise InvalidTokenError("the token's algorithm is not accepted")
    if typ is not None and str(header.get("typ", "")).lower().removeprefix("application/") not in typ:
        raise InvalidTokenError("the token has the wrong type")
    try:
        claims = msgspec.json.decode(_decode_base64url(token.split(".")[1]))
    except (ValueError, RecursionError):
        raise InvalidTokenError("the token's claims can't be read") from None
    if not isinstance(claims, dict) or claims.get("iss") != issuer:
        raise InvalidTokenError("the token has another issuer")
    return header


def read_header(token: str) -> dict[str, Any]:
    """Return the unverified header of a compact JWS, which has no dangerous member. Raises InvalidTokenError."""
    if len(token) > MAX_TOKEN:
        raise InvalidTokenError("the token is too long")
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise InvalidTokenError("the token is not a signed JWT")
    try:
        header = msgspec.json.decode(_decode_base64url(parts[0]))
    except (ValueError, RecursionError):
        raise InvalidTokenError("the token's header can't be read") from None
    if not isinstance(header, dict) or not ALLOWED_HEADERS.issuperset(header):
        raise InvalidTokenError("the token's header has a member that is not accepted")
    if not all(isinstance(value, str) for value in header.values()) or "alg" not in header:
        raise InvalidTokenError("the token's header can't be read")
    return header


def _payload(token: str, keys: Sequence[JoseKey], algorithm: str) -> dict[str, Any]:
    from joserfc import jws  # start-up, as above
    from joserfc.errors import JoseError

    for key in keys:
        try:
            signed = jws.deserialize_compact(token, key.material, registry=_registry(algorithm))
            claims = msgspec.json.decode(signed.payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        if isinstance(claims, dict):
            return claims
    raise InvalidTokenError("the token's signature is invalid")


def _registry(algorithm: str) -> Any:
    """Return the library's registry for one algorithm, and for tokens up to our limit."""
    from joserfc.jws import JWSRegistry  # start-up, as above

    if algorithm == "EdDSA":  # issuers' name for Ed25519 (RFC 9864), which the library warns about
        warnings.filterwarnings("ignore", "EdDSA is deprecated")
    registry = JWSRegistry(algorithms=[algorithm])
    registry.max_payload_length = MAX_TOKEN
    registry.max_header_length = MAX_TOKEN
    registry.max_signature_length = MAX_TOKEN
    return registry


def _algorithm_of(jwk: Mapping[str, Any]) -> str:
    kind = (jwk.get("kty"), jwk.get("crv"))
    named = jwk.get("alg")
    for algorithm, wanted in ALGORITHMS.items():
        if kind == wanted and named in (None, algorithm):
            return algorithm
    raise ValueError("a key of another kind")


def _check_rsa(jwk: Mapping[str, Any]) -> None:
    """Raise ValueError if the key is too weak, or too expensive to verify with."""
    longest = MAX_RSA // 6 + 8  # characters, checked before parsing the number
    modulus, exponent = str(jwk.get("n")), str(jwk.get("e"))
    if max(len(modulus), len(exponent)) > longest:
        raise ValueError(f"an RSA key of more than {MAX_RSA} bits")
    bits = int.from_bytes(_decode_base64url(modulus)).bit_length()
    if not MIN_RSA <= bits <= MAX_RSA:
        raise ValueError(f"an RSA key of less than {MIN_RSA} or more than {MAX_RSA} bits")
    if int.from_bytes(_decode_base64url(exponent)) > MAX_EXPONENT:
        raise ValueError("an RSA key with a large exponent")


def _check_times(claims: Mapping[str, Any], leeway: float, now: float) -> None:
    until: Any = claims.get("exp")
    since: Any = claims.get("nbf")
    issued: Any = claims.get("iat")
    if not _is_time(until) or now >= until + leeway:
        raise InvalidTokenError("the token has expired")
    if since is not None and (not _is_time(since) or now < since - leeway):
        raise InvalidTokenError("the token is not valid yet")
    if issued is not None and (not _is_time(issued) or now < issued - leeway):
        raise InvalidTokenError("the token was issued in the future")


def _check_audience(value: Any, audience: Collection[str], also: Collection[str]) -> None:
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list) or not all(isinstance(word, str) for word in named):
        raise InvalidTokenError("the token has no audience")
    if not any(word in audience for word in named) or not all(word in audience or word in also for word in named):
        raise InvalidTokenError("the token is for another audience")


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e11


def _decode_base64url(part: str) -> bytes:
    """Decode base64url as RFC 7515 has it: no padding, no other alphabet, no white space."""
    try:
        return base64.b64decode(part.encode("ascii") + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64url") from None
