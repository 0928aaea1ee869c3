"""URIs that two mounts claim are rewritten where they are URIs, and nowhere else."""

from typing import Any

import msgspec

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.parts.create import PartMaker
from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.server.features.mounts.resource_uris import find_contested

CONTESTED = find_contested({"one": ["x://a", "ui://view", "x://{id}"], "two": ["x://a", "ui://view", "x://{id}"]})


def test_links_contents_and_views_are_rewritten_and_data_is_not() -> None:
    rewriter = UriRewriter("one", CONTESTED)
    content = [
        {"type": "resource_link", "uri": "x://a", "name": "x://a"},
        {"type": "resource", "resource": {"uri": "x://a", "text": "x://a"}},
        {"type": "text", "text": "x://a", "_meta": {"ui": {"resourceUri": "ui://view"}}},
        {"type": "resource_link", "uri": "y://other", "name": "n"},
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
            {"type": "resource_link", "uri": "y://other", "name": "n"},
        ],
        "structuredContent": msgspec.Raw(b'{"uri":"x://a"}'),
        "_meta": {"ui/resourceUri": "ui://one/view", "uri": 1},
    }


def test_what_nobody_else_claims_stays_byte_for_byte() -> None:
    result = {"content": msgspec.Raw(b'[{"uri":  "x://a"}]')}
    assert UriRewriter("three", CONTESTED).rewrite_result(result) is result


def test_what_a_contested_template_matches_is_rewritten_too() -> None:
    rewriter = UriRewriter("one", CONTESTED)
    result = {"contents": [{"uri": "x://7", "text": "x://7"}, {"uri": "x://7/8"}, {"uri": "y://7"}]}
    exposed = [{"uri": "one+x://7", "text": "x://7"}, {"uri": "x://7/8"}, {"uri": "y://7"}]
    assert rewriter.rewrite_result(result) == {"contents": exposed}


def test_the_way_back_is_the_mounts_own_form() -> None:
    rewriter = UriRewriter("one", CONTESTED)
    for own in ("x://a", "ui://view"):
        assert rewriter.restore(rewriter.expose(own), rewriter.expose(own), own) == own
    assert rewriter.restore("one+x://7", "one+x://{id}", "x://{id}") == "x://7"
    assert rewriter.restore("y://7", "y://{id}", "y://{id}") == "y://7"


def test_an_item_that_is_too_deep_is_left_out_and_takes_no_other_with_it() -> None:
    deep: Any = {}
    for _ in range(2_000):
        deep = {"a": deep}
    unused: Any = None
    maker = PartMaker(MountConfig(name="one", command="x", prefix="one__"), unused)
    schema = {"type": "object"}
    tools = [{"name": "deep", "inputSchema": schema, "_meta": deep}, {"name": "good", "inputSchema": schema}]
    parts = list(maker.create_parts(MountLists(tools=tools), lambda _kind, name: name, UriRewriter("one", CONTESTED)))
    assert [part.name for part in parts] == ["good"]
