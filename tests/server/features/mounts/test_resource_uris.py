"""URIs of mounted resources: bare where one mount has them, and with its name where two do."""

import random

import pytest

from toolgate.server.features.mounts.resource_uris import expose_uri, find_contested


def test_a_uri_that_one_mount_claims_stays() -> None:
    contested = find_contested({"a": ["file:///x", "file:///x"], "b": ["file:///y", "ui://view"]})
    assert contested == {}
    assert [expose_uri("a", uri, contested) for uri in ("file:///x", "never:listed")] == ["file:///x", "never:listed"]


def test_a_uri_that_two_claim_gets_the_name_of_each() -> None:
    contested = find_contested({"a": ["file:///x"], "b": ["file:///x", "file:///y"], "c": []})
    assert contested == {"file:///x": frozenset("ab")}
    assert [expose_uri(mount, "file:///x", contested) for mount in "abc"] == ["a+file:///x", "b+file:///x", "file:///x"]


def test_two_spellings_are_one_uri() -> None:
    contested = find_contested({"a": ["HTTP://x/%7e"], "b": ["http://x/~"], "c": ["x://{a}", "x://{b}"]})
    assert contested == dict.fromkeys(("HTTP://x/%7e", "http://x/~"), frozenset("ab"))
    assert expose_uri("a", "HTTP://x/%7e", contested) == "a+HTTP://x/%7e"


def test_a_view_keeps_its_scheme() -> None:
    contested = find_contested({"a": ["ui://map/view.html"], "b": ["ui://map/view.html"]})
    assert expose_uri("a", "ui://map/view.html", contested) == "ui://a/map/view.html"


def test_a_uri_that_looks_like_one_with_a_name_is_not_taken_for_it() -> None:
    contested = find_contested({"git": ["https://x"], "b": ["https://x"], "c": ["git+https://x"]})
    assert expose_uri("c", "git+https://x", contested) == "c+git+https://x"
    alone = find_contested({"git": ["https://x"], "c": ["git+https://x"]})
    assert expose_uri("c", "git+https://x", alone) == "git+https://x"


@pytest.mark.parametrize("seed", range(40))
def test_each_served_uri_leads_to_one_mount(seed: int) -> None:
    rng = random.Random(seed)
    starts = ("", "a+", "b+", "a+b+", "ui://", "ui://a/", "ui://b/a/", "a+ui://")
    claims = {mount: {rng.choice(starts) + rng.choice("xyz") for _ in range(8)} for mount in "abc"}
    contested = find_contested(claims)
    served: dict[str, tuple[str, str]] = {}
    for mount, uris in claims.items():
        for uri in uris:
            exposed = expose_uri(mount, uri, contested)
            assert exposed not in served
            served[exposed] = (mount, uri)
