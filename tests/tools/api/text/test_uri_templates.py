"""URI templates: the examples of RFC 6570, and hostile URIs."""

import subprocess
import sys
import time
from types import FrameType
from typing import Any

import pytest

from toolgate.tools.api.text.uri_templates import (
    MAX_TEMPLATE,
    MAX_VARIABLES,
    UnusableTemplateError,
    UriTemplate,
)
from toolgate.tools.api.text.uris import MAX_URI, check_uri

# The string variables of RFC 6570 section 3.2.
RFC = {"dub": "me/too", "hello": "Hello World!", "half": "50%", "var": "value", "who": "fred", "empty": "", "x": "1024"}
RFC |= {"y": "768", "v": "6", "base": "http://example.com/home/", "folder": "foo/bar"}

# The examples of section 3.2 that can be matched, after a scheme.
EXAMPLES = [
    ("{var}", "value"),  # 3.2.2
    ("{hello}", "Hello%20World%21"),
    ("{half}", "50%25"),
    ("map?{x,y}", "map?1024,768"),
    ("{x,hello,y}", "1024,Hello%20World%21,768"),
    ("{+var}", "value"),  # 3.2.3
    ("{+hello}", "Hello%20World!"),
    ("{+half}", "50%25"),
    ("{+base}index", "http://example.com/home/index"),
    ("O{+empty}X", "OX"),
    ("{+folder}/here", "foo/bar/here"),
    ("here?ref={+folder}", "here?ref=foo/bar"),
    ("{+x,hello,y}", "1024,Hello%20World!,768"),
    ("{+folder,x}/here", "foo/bar,1024/here"),
    ("X{#var}", "X#value"),  # 3.2.4
    ("X{#hello}", "X#Hello%20World!"),
    ("{#half}", "#50%25"),
    ("foo{#empty}", "foo#"),
    ("foo{#undefined}", "foo"),
    ("{.who}", ".fred"),  # 3.2.5
    ("{.half,who}", ".50%25.fred"),
    ("X{.var}", "X.value"),
    ("{/who}", "/fred"),  # 3.2.6
    ("{/half,who}", "/50%25/fred"),
    ("{/var,x}/here", "/value/1024/here"),
    ("{?who}", "?who=fred"),  # 3.2.8
    ("{?half}", "?half=50%25"),
    ("{?x,y}", "?x=1024&y=768"),
    ("{?x,y,empty}", "?x=1024&y=768&empty="),
    ("{?x,y,undefined}", "?x=1024&y=768"),
    ("?fixed=yes{&x}", "?fixed=yes&x=1024"),  # 3.2.9
    ("?fixed=yes{&x,y,empty}", "?fixed=yes&x=1024&y=768&empty="),
]


@pytest.mark.parametrize(("text", "expansion"), EXAMPLES)
def test_the_examples_of_rfc_6570_expand_and_match_back(text: str, expansion: str) -> None:
    template = UriTemplate("rfc:" + text)
    values = {name: RFC[name] for name in template.variables if name in RFC}

    assert template.expand(values) == "rfc:" + expansion
    assert template.match("rfc:" + expansion) == values


@pytest.mark.parametrize(
    ("text", "uri", "values"),
    [
        ("note://{name}/text", "note://a/text", {"name": "a"}),
        ("note://{name}/text", "note://a/textual", None),
        ("note://{name}/text", "note://a/b/text", None),  # a simple variable holds nothing reserved
        ("note://{name}/text", "note://a:b/text", None),
        ("note://{name}/text", "NOTE://a/text", None),
        ("x:{a}-{b}", "x:1-2-3", {"a": "1", "b": "2-3"}),  # the first occurrence ends it
        ("x:{a}.md", "x:a.md.md", {"a": "a.md"}),  # the last literal is a suffix
        ("x:{a}--", "x:--", None),
        ("x:a{b}a", "x:a", None),  # one a is not two
        ("x:a{+b}a", "x:a", None),
        ("x:{name}{.end}", "x:a.tar.gz", {"name": "a", "end": "tar.gz"}),
        ("x:{+folder}/{file}", "x:a/b/c", {"folder": "a/b", "file": "c"}),  # read from the right
        ("x:{+folder}/{file}.{end}", "x:a/b.c/d.e.f", {"folder": "a/b.c", "file": "d.e", "end": "f"}),
        ("x:{a}/{+b}/{c}", "x:1/2/3/4", {"a": "1", "b": "2/3", "c": "4"}),
        ("x:{+a}/-/{+b}", "x:1/-/2/-/3", {"a": "1", "b": "2/-/3"}),
        ("x:{+path}", "x:a?b=c#d", {"path": "a?b=c#d"}),
        ("x:{+path}{?q}{#part}", "x:a/b?q=c#d?e", {"path": "a/b", "q": "c", "part": "d?e"}),
        ("x:{+path}{?q}{#part}", "x:a/b#d", {"path": "a/b", "part": "d"}),
        ("x:{+path}", "x:what%3F%23.txt", {"path": "what?#.txt"}),
        ("x:{a}{?b,c}", "x:1?c=3&b=2", {"a": "1", "b": "2", "c": "3"}),  # in any order
        ("x:{a}{?b,c}", "x:1", {"a": "1"}),
        ("x:{a}{?b,c}", "x:1?", None),
        ("x:{a}{?b,c}", "x:1?b", None),
        ("x:{a}{?b,c}", "x:1?b=1&", None),
        ("x:{a}{?b,c}", "x:1?b=1&b=2", None),
        ("x:{a}{?b,c}", "x:1?b=1&d=2", None),
        ("x:{a}{?b,c}", "x:1&b=1", None),
        ("x:{a}{?b,c}", "x:1?a=2", None),
        ("x:{a}{?b,c}", "x:1?b=2#c", None),
        ("x:?k=1&l={l}{&b,c}", "x:?k=1&l=7&c=3&b=2", {"l": "7", "b": "2", "c": "3"}),
        ("x:?k=1&l={l}{&b,c}", "x:?k=1&l=7", {"l": "7"}),
        ("x:?k=1&l={l}{&b,c}", "x:?k=1", None),
        ("x:{?q}", "x:?q=a%2Fb%3Fc", {"q": "a/b?c"}),
        ("x:{?q}", "x:?q=a+b", None),  # RFC 6570 writes a space as %20, a plus as %2B
        ("x:caffè/{a}", "x:caff%c3%A8/1", {"a": "1"}),
        ("x:%7euser/{a}", "x:~user/1", {"a": "1"}),  # RFC 3986 section 6.2.2.2: equivalent
        ("x:{a}", "x:%7Euser%c3%a8", {"a": "~userè"}),
        ("x:{a}2F{b}", "x:1%2F2", None),  # an encoded character is never split
        ("x:{+a}2F{b}", "x:%40%2Fy", None),
        ("x:a{?q}", "x:b?q=1", None),
        ("x:fixed", "x:fixed", {}),
    ],
)
def test_a_uri_is_read_in_one_way(text: str, uri: str, values: dict[str, str] | None) -> None:
    assert UriTemplate(text).match(uri) == values


KINDS = ["x://root/{v}", "x://root/{+v}", "x://root{/v}", "x://root/a{.v}", "x://root/{?v}", "x://root/?a=1{&v}"]
KINDS += ["x://root/{#v}"]


def with_value(text: str, raw: str) -> str:
    """Return the URI with `raw` in place of the variable."""
    head, _, expression = text.rstrip("}").partition("{")
    lead = {"v": "", "+v": "", "/v": "/", ".v": ".", "?v": "?v=", "&v": "&v=", "#v": "#"}
    return head + lead[expression] + raw


@pytest.mark.parametrize("text", KINDS)
def test_a_value_of_any_kind_is_matched_where_it_is_harmless(text: str) -> None:
    for raw, value in {"a": "a", "a..b": "a..b", "%E2%82%AC": "€", "...": "...", "a%20b": "a b", "%25": "%"}.items():
        assert UriTemplate(text).match(with_value(text, raw)) == {"v": value}


@pytest.mark.parametrize("text", KINDS)
@pytest.mark.parametrize(
    "raw",
    [
        "..",
        ".",
        "../etc/passwd",
        "%2e%2e",
        "%2E.",
        "..%2fetc",
        "%2e%2e%2Fetc",
        "a/../b",
        "a%2F..%2Fb",
        "a/..",
        "a%5C..%5Cb",
        "..%5C",
        "a/./b",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "%2F",
        "%5C%5Chost%5Cshare",
        "a%00",
        "%00",
        "a%0Ab",
        "a%0D%0Ab",
        "%7F",
        "%C2%85",
        "%C0%AE%C0%AE",  # an overlong ..
        "%C0%AF",
        "%FF",
        "%ED%A0%80",  # half of a surrogate pair
        "%E2%82",
        "%",
        "%4",
        "%zz",
        "%u002e",
        "a b",
        "a\n",
        "a\x00",
        "è",
        "\ud800",
        "a\\b",
        "a<b",
        'a"b',
        "a{b}",
    ],
)
def test_no_value_leads_out_of_a_root_or_is_no_text(text: str, raw: str) -> None:
    assert UriTemplate(text).match(with_value(text, raw)) is None


def test_an_encoded_slash_is_no_part_of_a_name() -> None:
    for text in KINDS[0], KINDS[2], KINDS[3]:
        for raw in "a%2Fb", "a%2fb", "a%5Cb", "a%2F", "":
            assert UriTemplate(text).match(with_value(text, raw)) is None


def test_a_path_holds_slashes_but_no_backslash_and_may_be_the_root_itself() -> None:
    template = UriTemplate("x://root/{+path}")

    assert template.match("x://root/a/b%2Fc") == {"path": "a/b/c"}
    assert template.match("x://root/a%5Cb") is None
    assert template.match("x://root//etc/passwd") is None
    assert template.match("x://root/") == {"path": ""}


@pytest.mark.parametrize("text", KINDS)
def test_a_value_is_decoded_once(text: str) -> None:
    for raw, value in {"%252e%252e": "%2e%2e", "a%252Fb": "a%2Fb", "%2500": "%00", "%25252F": "%252F"}.items():
        template = UriTemplate(text)

        assert template.match(with_value(text, raw)) == {"v": value}
        assert template.match(template.expand({"v": value})) == {"v": value}


@pytest.mark.parametrize("text", KINDS)
def test_an_expanded_uri_matches_with_the_same_values(text: str) -> None:
    template = UriTemplate(text)
    for value in "a", "50%25 off", "a b%41", "é%", "%", "100%", "a+b", "a=b&c", "日本", "a#b", "a:b", "'\"<>":
        assert template.match(template.expand({"v": value})) == {"v": value}


@pytest.mark.parametrize(
    ("text", "values", "reason"),
    [
        ("x:{a}-{b}", {"a": "1-2", "b": "3"}, "can't be read back"),
        ("x:{+a}{?b}", {"a": "1?b=2"}, "can't be read back"),
        ("x:{a}", {"a": ".."}, "can't be read back"),
        ("x:{a}", {"a": ""}, "can't be read back"),
        ("x:{a}", {"a": "a" * MAX_URI}, "can't be read back"),
        ("x:{a}{?b}", {"b": "1"}, "needs a value of a"),
        ("x:{a}{?b}", {"a": "1", "c": "1"}, "has no variable c"),
    ],
)
def test_values_that_make_no_uri_are_refused(text: str, values: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        UriTemplate(text).expand(values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no literal scheme"),
        ("{a}", "no literal scheme"),
        ("{scheme}://a", "no literal scheme"),
        ("/a/{b}", "no literal scheme"),
        ("1x:{b}", "no literal scheme"),
        ("x:{a", "{a is not closed"),
        ("x:a}", "'}'"),
        ("x:{{a}}", "is no variable"),
        ("x:{}", "is no variable"),
        ("x:{a,}", "is no variable"),
        ("x:{+}", "is no variable"),
        ("x:{a b}", "is no variable"),
        ("x:{a-b}", "is no variable"),
        ("x:{a..b}", "is no variable"),
        ("x:{è}", "is no variable"),
        ("x:{a:3}", "is no variable"),
        ("x:{a*}", "is no variable"),
        ("x:{/a*}", "is no variable"),
        ("x:{?a*}", "is no variable"),
        ("x:{a=1}", "is no variable"),
        ("x:{;a}", "the operator ; "),
        ("x:{|a}", "the operator | "),
        ("x:{=a}", "the operator = "),
        ("x:{a}{b}", "nothing between a and b"),
        ("x:{+a}{b}", "nothing between a and b"),
        ("x:{a}{+b}", "nothing between a and b"),
        ("x:{a}/{a}", "a comes twice"),
        ("x:{a}{?a}", "a comes twice"),
        ("x:{a}{#a}", "a comes twice"),
        ("x:{?a,a}", "a comes twice"),
        ("x:{?a}/b", "must be at the end"),
        ("x:{?a}{?b}", "must be at the end"),
        ("x:{?a}{&b}", "must be at the end"),
        ("x:{#a}b", "must be at the end"),
        ("x:{#a}{?b}", "must be at the end"),
        ("x:?b=1{?a}", "needs no"),
        ("x:b{&a}", "needs one"),
        ("x:{#a,b}", "must be one variable"),
        ("x:#b{#a}", "must be one variable"),
        ("x:a b/{c}", "' '"),
        ("x:a\n{c}", "must be percent-encoded"),
        ("x:\x85{c}", "must be percent-encoded"),
        ("x:\ud800{c}", "must be percent-encoded"),
        ("x:%zz{c}", "'%'"),
        ("x:\\{c}", "must be percent-encoded"),
        ("x:{a}" + "b" * MAX_TEMPLATE, "longer than"),
        ("x:" + "".join(f"{{/a{number}}}" for number in range(MAX_VARIABLES + 1)), "more than"),
    ],
)
def test_a_template_that_can_not_be_matched_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnusableTemplateError) as caught:
        UriTemplate(text)
    assert reason in str(caught.value)


def test_a_template_has_its_variables_and_its_prefix() -> None:
    template = UriTemplate("note://caffè/{name}{?from,to}{#part}")

    assert template.text == "note://caffè/{name}{?from,to}{#part}"
    assert template.variables == ("name", "from", "to", "part")
    assert template.optional == {"from", "to", "part"}
    assert template.prefix == "note://caff%C3%A8/"


@pytest.mark.parametrize("uri", ["x:", "note:///a", "http://[::1]:80/a?b=c&d#e", "urn:a:b", "x:%2e", "a+b-c.d:e"])
def test_a_valid_uri_is_accepted(uri: str) -> None:
    check_uri(uri)
    check_uri("x:" + "a" * (MAX_URI - 2))


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "no scheme"),
        ("a", "no scheme"),
        ("/etc/passwd", "no scheme"),
        (":a", "no scheme"),
        ("1a:b", "no scheme"),
        (" x:a", "no scheme"),
        ("x:a b", "' ' at 3"),
        ("x:a\n", r"'\\n' at 3"),
        ("x:\x00", r"'\\x00' at 2"),
        ("x:è", r"'\\xe8' at 2"),
        ("x:%", "'%' at 2"),
        ("x:%4g", "'%' at 2"),
        ("x:{a}", "'{' at 2"),
        ("x:a\\b", "at 3"),
        ("x:\u202e", r"'\\u202e'"),
        ("x:" + "a" * MAX_URI, "longer than 8192"),
    ],
)
def test_an_invalid_uri_is_refused(uri: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_uri(uri)


def lines(template: UriTemplate, uri: str) -> int:
    """Return how many lines of Python a match of the URI runs."""
    count = 0

    def traced(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        template.match(uri)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("text", "head", "unit", "tail"),
    [
        ("x:" + "-".join(f"{{a{number}}}" for number in range(MAX_VARIABLES)), "x:", "a-", "a"),
        ("x:" + "-".join(f"{{a{number}}}" for number in range(MAX_VARIABLES)), "x:", "a-", "/"),
        ("x:" + "/".join(f"{{+a{number}}}" for number in range(MAX_VARIABLES)) + "/z", "x:", "a/", "y"),
        ("x:{+a}/{b}/{c}/{d}", "x:", "/", ""),
        ("x:{a}" + "a" * 50 + "b{c}", "x:", "a", ""),
        ("x:{+a}", "x:", "%2e", "%"),
        ("x:{+a}", "x:", "a%2F", "/.."),
        ("x:{?q}", "x:?q=", "%C3%A8", ""),
        ("x:{?q}", "x:?q=1", "&q=1", ""),
        ("x:{?q}", "x:", "?", ""),
    ],
)
def test_matching_takes_work_in_proportion_to_the_uri(text: str, head: str, unit: str, tail: str) -> None:
    template = UriTemplate(text)
    template.match(template.expand(dict.fromkeys(template.variables, "1")))  # the library is loaded
    count = (MAX_URI - len(head + tail)) // len(unit)

    half, whole = (lines(template, head + unit * times + tail) for times in (count // 2, count))
    began = time.process_time()
    for _ in range(10):
        template.match(head + unit * count + tail)

    assert whole <= 2.1 * half + 100
    assert time.process_time() - began < 5


def test_the_library_is_loaded_when_a_uri_is_matched_not_before() -> None:
    source = """
import sys
from toolgate.tools.api.text.uri_templates import UriTemplate
template = UriTemplate("x:{a}")
assert "uritemplate" not in sys.modules
assert template.match("y:1") is None
assert "uritemplate" not in sys.modules
assert template.match("x:1") == {"a": "1"}
assert "uritemplate" in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
