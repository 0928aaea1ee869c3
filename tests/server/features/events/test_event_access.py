"""Events with sign-in: scopes, and what a revocation does to an open stream."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS
from tests.server.auth.minted_tokens import ENVELOPE, Signed, challenge, request, signed_site
from tests.server.auth.test_ownership import messages, opened
from tests.server.auth.test_revocation_watch import OFTEN, account, granted, revoke
from tests.servers.forked_command import changed_command


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("events")
    with signed_site(folder, workspace=False, command=changed_command(OFTEN)) as held:
        yield held


def asking(method: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    params = {"name": name, "arguments": {}, "cursor": None, "_meta": ENVELOPE}
    return request(method, params), {"mcp_protocol_version": STATELESS, "mcp_method": method}


@pytest.mark.parametrize("method", ["events/poll", "events/stream", "events/subscribe"])
def test_a_type_is_refused_without_the_scope_of_its_tool(signed: Signed, method: str) -> None:
    token = signed.token("reader", "one", ["tools:read"])
    for name, scope in (("todo.changed", "tools:workflow"), ("callback.fired", "tools:workflow")):
        body, headers = asking(method, name)
        response, *_ = signed.site.ask("POST", "/mcp", body, authorization=f"Bearer {token}", **headers)
        assert response.status == 403
        assert scope in challenge(response)["scope"]
    body, headers = asking("events/poll", "command.ended")
    response, *_ = signed.site.ask("POST", "/mcp", body, authorization=f"Bearer {token}", **headers)
    assert response.status == 200
    body, headers = asking("toolgate/events/test", "command.ended")  # its arguments reach other clients
    response, *_ = signed.site.ask("POST", "/mcp", body, authorization=f"Bearer {token}", **headers)
    assert (response.status, "tools:workflow" in challenge(response)["scope"]) == (403, True)


def test_a_revoked_grant_ends_its_stream_and_says_so(signed: Signed) -> None:
    ada = account(signed, "ada")
    granted(signed, ada, "one")
    token = signed.token(ada, "one", noted=False)
    body, headers = asking("events/stream", "todo.changed")
    with opened(signed, token, "POST", "/mcp", body, **headers) as stream:
        told = messages(stream)
        assert next(told)["method"] == "notifications/events/active"
        revoke(signed, ada, "one")
        terminated = next(told)
        assert terminated["method"] == "notifications/events/terminated"
        assert terminated["params"]["error"]["code"] == -32012
