"""URIs that two mounts claim are rewritten where they are URIs, and nowhere else."""

import msgspec

from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.server.features.mounts.resource_uris import find_contested

CONTESTED = find_contested({"one": ["x://a", "ui://view", "x://{id}"], "two": ["x://a", "ui://view", "x://{id}"]})


def test_links_contents_and_views_are_rewritten_and_data_is_not() -> None:
    rewriter = UriRewriter("one", CONTESTED)
    content = [
        {"type": "resource_link", "uri": "x://a", "name": "x://a"},
        {"type": "resource", "resource": {"uri": "x://a", "text": "x://a"}},
        {"type": "text", "text": "x://a", "_meta": {"ui": {"resourceUri": "ui://view"}}},
        {"type": "resource_link", "uri": "x://other", "name": "n"},
    ]
    result = {
        "content": msgspec.Raw(msgspec.json.encode(content)),
        "structuredContent": msgspec.Raw(b'{"uri":"x://a"}'),
        "_meta": {"ui/resourceUri": "ui://view", "uri": 1},
    }
    assert rewriter.rewrite_result(result) == {
        "content": [
            {"type": "resource_link", "uri": "one+x://a", "name": "x://a"},
            {"type": "resource", "resource": {"uri": "one+x://a", "text": "x://a"}},
            {"type": "text", "text": "x://a", "_meta": {"ui": {"resourceUri": "ui://one/view"}}},
            {"type": "resource_link", "uri": "x://other", "name": "n"},
        ],
        "structuredContent": msgspec.Raw(b'{"uri":"x://a"}'),
        "_meta": {"ui/resourceUri": "ui://one/view", "uri": 1},
    }


def test_what_nobody_else_claims_stays_byte_for_byte() -> None:
    result = {"content": msgspec.Raw(b'[{"uri":  "x://a"}]')}
    assert UriRewriter("three", CONTESTED).rewrite_result(result) is result


def test_the_way_back_is_the_mounts_own_form() -> None:
    rewriter = UriRewriter("one", CONTESTED)
    for own in ("x://a", "ui://view"):
        assert rewriter.restore(rewriter.expose(own), rewriter.expose(own), own) == own
    assert rewriter.restore("one+x://7", "one+x://{id}", "x://{id}") == "x://7"
    assert rewriter.restore("y://7", "y://{id}", "y://{id}") == "y://7"
