"""URLs that name one page."""

import pytest

from toolgate.tools.reading.search.urls import page_key, remove_tracking, unwrap_redirect

SAME = [
    ("http://example.org", "https://example.org/"),
    ("https://www.example.org/a/", "http://example.org:80/a"),
    ("https://m.example.org/a", "https://EXAMPLE.org:443/a#part"),
    ("https://example.org./a", "https://www.m.example.org/a"),
    ("https://mobile.example.org/", "https://example.org/#:~:text=x"),
    ("https://en.m.wikipedia.org/wiki/Frob", "https://en.wikipedia.org/wiki/Frob"),
    ("https://example.org/a?utm_source=x&b=1&UTM_medium=y", "https://example.org/a?b=1"),
    ("https://example.org/a?gclid=1&fbclid=2", "https://example.org/a"),
    ("https://example.org/a?", "https://example.org/a?&"),
    ("https://example.org/%7Eme", "https://example.org/~me"),
    ("https://example.org/%c3%a9", "https://example.org/é"),
    ("https://example.org/a%2fb?q=%2b", "https://example.org/a%2Fb?q=%2B"),
    ("https://example.org/a/./b/../c", "https://example.org/a/c"),
    ("https://bücher.example/", "https://xn--bcher-kva.example/"),
]
OTHER = [
    ("https://example.org/a?b=1&c=2", "https://example.org/a?c=2&b=1"),
    ("https://example.org/a", "https://example.org/A"),
    ("https://example.org/a%2Fb", "https://example.org/a/b"),
    ("https://example.org/?a=%26b", "https://example.org/?a=&b"),
    ("https://example.org:8443/", "https://example.org/"),
    ("https://en.example.org/", "https://example.org/"),
    ("https://en.m.wikipedia.org/", "https://de.m.wikipedia.org/"),
    ("https://www.org/", "https://m.org/"),
    ("https://m.org/", "https://mobile.org/"),
]
NONE = ["", "x", "ftp://a.example/", "http://", "http://[::1/", "http://a:b/", "http://a b/", "http://a\u202e.example/"]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_two_spellings_of_one_page_are_one(one: str, two: str) -> None:
    assert page_key(one) == page_key(two) is not None


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_two_pages_are_two(one: str, two: str) -> None:
    assert page_key(one) != page_key(two)


@pytest.mark.parametrize(
    "url", [*NONE, "https://a.example/" + "x" * 2_000, "http://" + "ü" * 300, "https://u:p@a.example/"]
)
def test_a_url_that_is_no_web_page_has_no_key(url: str) -> None:
    assert page_key(url) is None


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://a.example/?utm_source=x&b=1&c=%26&gclid=2#part", "https://a.example/?b=1&c=%26#part"),
        ("https://a.example/x?utm_source=x", "https://a.example/x"),
        ("https://a.example/x?%75tm_source=x#y?utm_source=z", "https://a.example/x#y?utm_source=z"),
        ("https://a.example/x?", "https://a.example/x?"),
        ("https://a.example/?b=&&c", "https://a.example/?b=&&c"),
    ],
)
def test_tracking_parameters_are_removed(url: str, plain: str) -> None:
    assert remove_tracking(url) == plain
    assert page_key(url) == page_key(plain)


def test_a_redirect_link_without_a_target_is_no_result() -> None:
    assert unwrap_redirect("//duckduckgo.com/l/?x=1") == ""
    assert unwrap_redirect("//a.example/x") == "https://a.example/x"
