"""Match URIs with URI templates (RFC 6570).

The uritemplate library only expands templates; the matching here is strict, because URIs are untrusted and values end
up in paths. The text is cut at the template's literals from left to right: each variable ends at the first occurrence
of the next literal. What follows the last {+variable} is cut from the right, for {+folder}/{file}. No step backtracks,
so the work is linear in the URI's length. Then the library expands the values, and only values that yield the same URI
are a match.

{?a,b} and {&a,b} may only end a template, and {#a} may follow them. A URI may leave them out or reorder them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

import msgspec

from toolgate.tools.api.text.uris import (
    LEGAL,
    PLAIN,
    RESERVED,
    SCHEME,
    TRIPLET,
    check_uri,
    normalise_beginning,
    normalise_encoding,
)

if TYPE_CHECKING:
    from uritemplate import URITemplate

MAX_TEMPLATE = 1024  # characters: it is written by hand
MAX_VARIABLES = 32  # each is a parameter of a function

PATH = "/:@!$&'()*+,;="  # RFC 3986 section 3.3: allowed in a path; not ? and #, which would end it

ENCODED = re.compile(rf"(?:{PLAIN}++|{TRIPLET})*+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NAME = re.compile(r"[A-Za-z0-9_]++(?:\.[A-Za-z0-9_]++)*+")  # RFC 6570 section 2.3, without its %


class UnusableTemplateError(ValueError):
    """A template that is invalid, or whose variables can't be read back from a URI. The text says why."""


class _Operator(msgspec.Struct, frozen=True):
    """The syntax of a variable: its prefix, its separator, and the characters of its values."""

    lead: str
    between: str
    allows_reserved: bool = False  # whether reserved characters stay unencoded in it
    allows_empty: bool = False  # whether a value may be
    forbidden: str = "/\\"  # in the decoded value: characters that would cut a path


OPERATORS = {
    "": _Operator("", ","),
    "+": _Operator("", ",", True, True, "\\"),
    "/": _Operator("/", "/"),
    ".": _Operator(".", "."),
    "?": _Operator("?", "&", False, True, ""),
    "&": _Operator("&", "&", False, True, ""),
    "#": _Operator("#", ",", True, True, ""),
}
UNSUPPORTED_OPERATORS = frozenset(";=,!@|")  # operators of RFC 6570 section 2.2, defined or reserved


class _Expression(msgspec.Struct, frozen=True):
    operator: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{{{self.operator}{','.join(self.names)}}}"


class UriTemplate:
    """A URI template (RFC 6570) with a literal scheme. Raises UnusableTemplate."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEMPLATE:
            raise UnusableTemplateError(f"it is longer than {MAX_TEMPLATE} characters")
        items = list(_parse_items(text))
        if items and isinstance(items[0], str):
            items[0] = normalise_beginning(items[0])
        self.text = text
        self._fragment = _take_last(items, "#")
        self._query = _take_last(items, "?&")
        self._literals, self._head = _split_literals(items)
        self._operators = _operators([*items, self._query, self._fragment])
        self._normal = "".join(map(str, [*items, self._query or "", self._fragment or ""]))
        self._library: URITemplate | None = None
        self._check()

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables, in the order of the text."""
        return tuple(self._operators)

    @property
    def optional(self) -> frozenset[str]:
        """The variables that a match may lack: the query's and the fragment's."""
        return frozenset(self._operators).difference(self._head)

    @property
    def prefix(self) -> str:
        """The literal beginning, with its percent-encoding normalised."""
        return self._literals[0]

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the decoded values, or None. No value leads out of a root folder (see `_decode_value`)."""
        spelled = normalise(uri)
        return None if spelled is None else self.match_normal(spelled)

    def match_normal(self, uri: str) -> dict[str, str] | None:
        """Do what `match` does, for a URI with normalised percent-encoding, such as a canonical one."""
        if not uri.startswith(self.prefix):
            return None
        head, tail, part = self._split(uri)
        found = self._raw_values(head, tail, part)
        if found is None:
            return None
        values = {name: _decode_value(self._operators[name], raw) for name, raw in found.items()}
        sound = {name: value for name, value in values.items() if value is not None}
        if len(sound) < len(values) or self._expand(sound, found) != head + self._order_query(tail, found) + part:
            return None
        return {name: sound[name] for name in self._operators if name in sound}

    def expand(self, values: Mapping[str, str]) -> str:
        """Return the URI that matches with exactly these values. Raises ValueError if there is none."""
        if strange := sorted(values.keys() - self._operators.keys()):
            raise ValueError(f"{self.text} has no variable {strange[0]}")
        if missing := [name for name in self._head if name not in values]:
            raise ValueError(f"{self.text} needs a value of {missing[0]}")
        # Reserved expansion would read a % in a value as encoding, so it is encoded first.
        encoded = {name: quote(value, safe=RESERVED) for name, value in values.items()}
        uri = self._expand(values, encoded)
        if self.match(uri) != dict(values):
            raise ValueError(f"the values can't be read back from what they make of {self.text}")
        return uri

    def _expand(self, values: Mapping[str, str], raw: Mapping[str, str]) -> str:
        """Expand. Reserved expansions take encoded values (RFC 6570 section 3.2.1), others decoded ones."""
        if self._library is None:
            from uritemplate import URITemplate  # start-up: 2 ms

            self._library = URITemplate(self._normal)
        reserved = {name for name in values if OPERATORS[self._operators[name]].allows_reserved}
        return self._library.expand({name: (raw if name in reserved else values)[name] for name in values})

    def _split(self, uri: str) -> tuple[str, str, str]:
        """Return the part before the query expression, its own part, and the fragment expression's."""
        fragment = uri.find("#") if self._fragment else -1
        stop = len(uri) if fragment < 0 else fragment
        start = self._query_start(uri, stop)
        return uri[:start], uri[start:stop], uri[stop:]

    def _query_start(self, uri: str, stop: int) -> int:
        start = uri.find("?", 0, stop)
        if self._query is None or start < 0:
            return stop
        if self._query.operator == "?":
            return start
        for _ in range(1 + "".join(self._literals).partition("?")[2].count("&")):  # skip the template's own ones
            start = uri.find("&", start + 1, stop)
            if start < 0:
                return stop
        return start

    def _raw_values(self, head: str, tail: str, part: str) -> dict[str, str] | None:
        """Return the encoded value of each variable."""
        found = self._head_values(head)
        query = self._query_values(tail)
        if found is None or query is None:
            return None
        found.update(query)
        if self._fragment and part:
            found[self._fragment.names[0]] = part[1:]
        return found

    def _head_values(self, head: str) -> dict[str, str] | None:
        if not self._head:
            return {} if head == self.prefix else None
        (first, *between, last), rest = self._literals, self._greedy_index()
        text = head[len(first) : len(head) - len(last)]
        if first + text + last != head:
            return None
        before, after = list[str](), list[str]()
        for literal in between[:rest]:
            raw, cut, text = text.partition(literal)
            if not cut:
                return None
            before.append(raw)
        for literal in reversed(between[rest:]):
            text, cut, raw = text.rpartition(literal)
            if not cut:
                return None
            after.append(raw)
        return dict(zip(self._head, [*before, text, *reversed(after)], strict=True))

    def _greedy_index(self) -> int:
        """Return the index of the variable that takes the rest: the last {+variable}, else the last."""
        spanning = [index for index, name in enumerate(self._head) if self._operators[name] == "+"]
        return spanning[-1] if spanning else len(self._head) - 1

    def _query_values(self, tail: str) -> dict[str, str] | None:
        found: dict[str, str] = {}
        if self._query is None or not tail:
            return found
        for pair in tail[1:].split("&"):
            name, equals, raw = pair.partition("=")
            if not equals or name in found or name not in self._query.names:
                return None
            found[name] = raw
        return found

    def _order_query(self, tail: str, found: Mapping[str, str]) -> str:
        """Return the query's part in the template's order, which is the order of expansion."""
        names = self._query.names if self._query else ()
        return tail[:1] + "&".join(f"{name}={found[name]}" for name in names if name in found)

    def _check(self) -> None:
        literal = "".join(self._literals)
        if not SCHEME.match(self.prefix):
            raise UnusableTemplateError("it has no literal scheme")
        if self._query and ("?" in literal) != (self._query.operator == "&"):
            needed = "one" if self._query.operator == "&" else "no"
            raise UnusableTemplateError(f"{self._query} needs {needed} ? before it")
        if self._fragment and (len(self._fragment.names) > 1 or "#" in literal):
            raise UnusableTemplateError(f"{self._fragment} must be one variable, with no # before it")


def normalise(uri: str) -> str | None:
    """Return the URI with normalised percent-encoding, or None if it is no URI."""
    try:
        check_uri(uri)
    except ValueError:
        return None
    return normalise_encoding(uri)


def encode_path(path: str) -> str | None:
    """Return a path encoded for a URI without its first slash (RFC 3986 section 3.3). None for one that {+variable}
    would not give back, or that can't be decoded."""
    if not path.isprintable() or "\\" in path:
        return None
    return quote(path, safe=PATH)


def _decode_value(operator: str, raw: str) -> str | None:
    """Return the value decoded once. None if it is not UTF-8, has control characters, or leads out of a root folder."""
    rule = OPERATORS[operator]
    if not (LEGAL if rule.allows_reserved else ENCODED).fullmatch(raw):
        return None
    try:
        value = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    if not value:
        return value if rule.allows_empty else None
    if any(character in value for character in rule.forbidden) or CONTROL.search(value):
        return None
    first, *others = value.replace("\\", "/").split("/")
    rooted = not first and others
    return None if rooted or not {".", ".."}.isdisjoint([first, *others]) else value


def _parse_items(text: str) -> Iterator[str | _Expression]:
    while text:
        literal, opened, text = text.partition("{")
        if literal:
            yield _literal(literal)
        if opened:
            inside, closed, text = text.partition("}")
            if not closed:
                raise UnusableTemplateError(f"{{{inside} is not closed")
            yield _expression(inside)


def _literal(text: str) -> str:
    """Return the text with non-ASCII characters encoded, as it stands in a URI (RFC 6570 section 3.1)."""
    whole = "".join(quote(each) if not each.isascii() and each.isprintable() else each for each in text)
    legal = LEGAL.match(whole)
    if legal and legal.end() < len(whole):
        raise UnusableTemplateError(f"it holds {whole[legal.end()]!a}, which must be percent-encoded")
    return normalise_encoding(whole)


def _expression(inside: str) -> _Expression:
    if inside[:1] in UNSUPPORTED_OPERATORS:
        raise UnusableTemplateError(f"{{{inside}}}: the operator {inside[0]} can't be matched")
    operator = inside[:1] if inside[:1] in OPERATORS else ""
    names = tuple(inside[len(operator) :].split(","))
    for name in names:
        if not NAME.fullmatch(name):
            raise UnusableTemplateError(f"{{{inside}}}: {name!a} is no variable to match (letters, digits, _)")
    return _Expression(operator, names)


def _take_last(items: list[str | _Expression], operators: str) -> _Expression | None:
    """Remove and return the last item if it has one of these operators."""
    if items and isinstance(last := items[-1], _Expression) and last.operator and last.operator in operators:
        items.pop()
        return last
    return None


def _split_literals(items: Iterable[str | _Expression]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the literals, and the variables between them."""
    literals, names = [""], list[str]()
    for item in items:
        if isinstance(item, str):
            literals[-1] += item
            continue
        if item.operator and item.operator in "?&#":
            raise UnusableTemplateError(f"{item} must be at the end, and only one of its kind")
        rule = OPERATORS[item.operator]
        for number, name in enumerate(item.names):
            literals[-1] += rule.between if number else rule.lead
            if names and not literals[-1]:
                raise UnusableTemplateError(f"there is nothing between {names[-1]} and {name}")
            names.append(name)
            literals.append("")
    return tuple(literals), tuple(names)


def _operators(items: Iterable[str | _Expression | None]) -> dict[str, str]:
    """Return the operator of each variable. A repeated variable would have two values."""
    operators: dict[str, str] = {}
    for expression in (item for item in items if isinstance(item, _Expression)):
        for name in expression.names:
            if name in operators:
                raise UnusableTemplateError(f"{name} comes twice")
            operators[name] = expression.operator
    if len(operators) > MAX_VARIABLES:
        raise UnusableTemplateError(f"it has more than {MAX_VARIABLES} variables")
    return operators
