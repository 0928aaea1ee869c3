"""Remove from a call's arguments what looks like a secret, and cut them to size. Imported with `--audit full` only.

The patterns are guesses: an unusual secret may stay in the log.
"""

import re
from typing import Any

import msgspec

from toolgate.server.protocol.messages import replace_surrogates

MAX_BYTES = 4096  # bytes of one call's arguments that are kept
MAX_TEXT = 8192  # characters of a call's texts that are searched, so that no expression below takes long
MAX_VALUES = 1000  # of one call; the rest is left out
MAX_DEPTH = 20
REDACTED = "[redacted]"

WORDS = (
    r"pass(?:word|wd|phrase|code)|pwd|token|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie"
    r"|auth(?:orization)?(?![a-z])"
)
NAME = re.compile(rf"(?i)(?:{WORDS})|(?:^|[_-])(?:key|pass|pin|otp)$")
VALUE = r"""(?:\[redacted\]|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"'&;|,)}]+)"""
TOKENS = (
    r"gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|sk-[\w-]{10,}|xox[a-z]-[\w-]{8,}|hf_\w{10,}|npm_\w{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{20,}|[sr]k_(?:live|test)_\w{8,}|eyJ[\w-]{8,}(?:\.[\w-]*){0,4}"
)
NAMED = rf"\1\2{REDACTED}"  # the name stays
SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (  # in this order; each can match at few places of a text
    (re.compile(r"(?s)-----BEGIN[^-]{0,40}PRIVATE KEY[^-]{0,10}-----.*?(?:-----END[^-]{0,60}-----|\Z)"), REDACTED),
    (re.compile(r"(?i)\b(authorization|cookie|set-cookie|x-api-key|x-auth-token)(\s*[:=]\s*)[^\r\n\"']+"), NAMED),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}"), NAMED),
    (re.compile(r"://[^/\s?#\"']*@"), f"://{REDACTED}@"),
    (re.compile(rf"(?<![\w-])(?:{TOKENS})"), REDACTED),
    (re.compile(r"(?<![\w-])(-u|--user|--proxy-user)([\s=]+)[^\s:\"']+:[^\s\"']+"), NAMED),
    (re.compile(rf"(?i)(?<![\w-])(--[\w-]{{0,64}}(?:{WORDS})[\w-]{{0,64}})(\s+){VALUE}"), NAMED),
    (re.compile(rf"(?i)(?<![\w-])([\w-]{{0,64}}(?:{WORDS})[\w-]{{0,64}}[\"']?)(\s{{0,9}}[:=]\s{{0,9}}){VALUE}"), NAMED),
    (re.compile(r"(?<![\w-])([\w-]{0,64}_(?:KEY|PASS|PIN|OTP))(=)(?!\[redacted\])[^\s;|&]+"), NAMED),
)
SIGNS = re.compile(r"[:=@]|-[-u]|(?i:bearer|basic)|" + TOKENS)  # nothing above matches without one of these


def redact(arguments: dict[str, Any]) -> Any:
    """Return what may be kept of a call's arguments: the same shape, or the beginning of its JSON as one string if that
    is longer than `MAX_BYTES`."""
    kept = Redactor().value(arguments, 0)
    told = msgspec.json.encode(replace_surrogates(kept))
    if len(told) <= MAX_BYTES:
        return msgspec.Raw(told)
    return told[:MAX_BYTES].decode("utf-8", "ignore") + "…"


def redact_text(given: str, longest: int = MAX_TEXT) -> str:
    """Return the beginning of a text, without what looks like a secret."""
    is_long = len(given) > longest
    if is_long:
        given = re.sub(r"(?<!\S)\S{1,512}\Z|\S{512}\Z", "", given[:longest])  # half a secret has lost its shape
    for shape, instead in SHAPES if SIGNS.search(given) else ():
        given = shape.sub(instead, given)
    return f"{given}…" if is_long else given


class Redactor:
    """The limits of one call, as they are used up."""

    def __init__(self) -> None:
        self._values = MAX_VALUES
        self._characters = MAX_TEXT

    def value(self, given: Any, depth: int) -> Any:
        self._values -= 1
        if self._values < 0 or depth > MAX_DEPTH:
            return "…"
        match given:
            case str():
                return self._text(given)
            case list():
                return [self.value(item, depth + 1) for item in given[: self._values + 1]]
            case dict():
                return self._object(given, depth)
            case _:
                return given

    def _object(self, given: dict[str, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in given.items():
            if self._values < 0:
                break
            is_secret = value is not None and NAME.search(name[:MAX_TEXT])
            found[self._text(name)] = REDACTED if is_secret else self.value(value, depth + 1)
        return found

    def _text(self, given: str) -> str:
        longest = max(self._characters, 0)
        self._characters -= len(given)
        return redact_text(given, longest)
