"""URIs that mean the same have one canonical form, and no others do."""

import pytest

from toolgate.tools.api.content import Contents
from toolgate.tools.api.errors import CollisionError
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import Resource, resource
from toolgate.tools.api.scopes import READ
from toolgate.tools.api.text.uris import MAX_CACHED_URI, MAX_URI, canonicalise

EQUAL = [
    ("file:///a/b c", "file:///a/b%20c"),
    ("file:///caf\u00e9", "file:///caf%C3%A9"),
    ("file:///caf%c3%a9", "file:///caf%C3%A9"),
    ("file:///%63af%C3%A9", "file:///caf%C3%A9"),
    ("file:///\u65e5\u672c \U0001f600", "file:///%E6%97%A5%E6%9C%AC%20%F0%9F%98%80"),
    ('file:///a|b<c>{d}"`^', "file:///a%7Cb%3Cc%3E%7Bd%7D%22%60%5E"),
    ("FILE:///a", "file:///a"),
    ("file://localhost/a", "file:///a"),
    ("file://LocalHost/a", "file:///a"),
    ("file:/a", "file:///a"),
    ("File:/a b", "file:///a%20b"),
    ("NOTE://One/a", "note://One/a"),
    ("HTTPS://Example.COM:443/A", "https://example.com/A"),
    ("http://example.com:/a", "http://example.com/a"),
    ("http://example.com:8080/a", "http://example.com:8080/a"),
    ("https://example.com", "https://example.com/"),
    ("https://User@Example.com/", "https://User@example.com/"),
    ("http://[::1]:80?q=A#B", "http://[::1]?q=A#B"),
    ("urn:Example:a%2fb", "urn:Example:a%2Fb"),
]


@pytest.mark.parametrize(("spelled", "canonical"), EQUAL)
def test_each_spelling_of_a_uri_has_its_canonical_form(spelled: str, canonical: str) -> None:
    assert canonicalise(spelled) == canonicalise(canonical) == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("note://one", "note://ONE"),  # a name, in which case counts
        ("file:///a%2Fb", "file:///a/b"),
        ("file:///a%3Fb", "file:///a?b"),
        ("file:///A", "file:///a"),
        ("file:///a/", "file:///a"),
        ("file:///a%2520", "file:///a%20"),
        ("file://elsewhere/a", "file:///a"),
        ("file:////a", "file:///a"),
        ("http://example.com:80", "https://example.com:443"),
        ("file:///caf\u00e9", "file:///cafe\u0301"),  # RFC 3987 section 5.3.2.2: no normalisation of characters
    ],
)
def test_uris_that_differ_stay_different(one: str, other: str) -> None:
    assert canonicalise(one) != canonicalise(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "/a",
        "//a",
        ":a",
        "1a:b",
        " file:///a",
        "file:///%",
        "file:///%zz",
        "file:///\ud800",
        "x:" + "a" * MAX_URI,
    ],
)
def test_what_is_no_uri_has_no_form(text: str) -> None:
    assert canonicalise(text) is None


def test_a_text_that_is_too_long_once_it_is_encoded_has_no_form() -> None:
    assert canonicalise("x:" + "\u00e9" * 1_300) is not None
    assert canonicalise("x:" + "\u00e9" * 1_400) is None


def declare(uri: str, scope: str = READ) -> Resource:
    @resource(uri, scope=scope)
    async def serve(**given: str) -> Contents:
        """A resource."""
        raise NotImplementedError

    return serve


def test_a_resource_and_a_template_serve_each_spelling() -> None:
    fixed, template = declare("note://caf%C3%A9"), declare("file:///{+path}")
    upper, hosted = declare("WIKI://Start"), declare("https://Example.com/{page}")
    registry = Registry([fixed, template, upper, hosted])
    for uri in ("note://caf%C3%A9", "NOTE://caf\u00e9", "note://%63af%c3%a9"):
        assert registry.resource(uri) == (fixed, {})
        assert fixed.match(uri) == {}
    for uri in ("file:///a%20b", "file:/a b", "FILE://localhost/a%20b"):
        assert registry.resource(uri) == (template, {"path": "a b"})
        assert template.match(uri) == {"path": "a b"}
    for uri in ("WIKI://Start", "wiki://Start"):
        assert registry.resource(uri) == (upper, {})
    assert registry.resource("HTTPS://EXAMPLE.COM:443/One") == (hosted, {"page": "One"})
    for uri in ("note://cafe", "wiki://start", "file://elsewhere/a", "file:///a/../b", "none:a", "note"):
        assert registry.resource(uri) is None


def test_two_spellings_of_one_resource_collide() -> None:
    with pytest.raises(CollisionError):
        Registry([declare("note://caf%C3%A9"), declare("NOTE://caf%c3%a9")])


def test_each_spelling_needs_the_scopes_of_its_resource() -> None:
    """Else another spelling would be a way around a scope."""
    secret, plain = "tools:secret", "tools:plain"
    registry = Registry([declare("note://secret", secret), declare("note://{name}", plain)])
    alone = Registry([declare("note://secret", secret)])
    for uri in ("note://secret", "NOTE://secret", "note://%73ecret", "Note://s%65cret"):
        assert registry.scopes_of(uri) == {secret}
        assert alone.scopes_of(uri) == {secret}
    for uri in ("note://other", "NOTE://other", "note://\u00e9"):
        assert registry.scopes_of(uri) == {plain}
        assert alone.scopes_of(uri) == {READ}
    long = "note://" + "%73ecret" + "a" * MAX_CACHED_URI
    assert registry.scopes_of(long) == {secret, plain}


def test_the_owner_of_a_scheme_owns_each_spelling_of_it() -> None:
    owner = declare("NOTE://{name}", "tools:secret")
    owner.owns_scheme = True
    for uri in ("note://a", "NOTE://a", "nOtE:b"):
        assert "tools:secret" in Registry([owner]).scopes_of(uri)
