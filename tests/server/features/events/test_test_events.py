"""The pace of test events: each principal has its own."""

from pathlib import Path
from typing import Any

from tests.server.auth.minted_tokens import Signed, asked, signed_site
from toolgate.server.features.events.log.log import MAX_TESTS

TYPE = {"name": "command.ended"}


def send_test(signed: Signed, token: str) -> Any:
    return asked(signed, token, "toolgate/events/test", TYPE)[2]


def test_a_principal_sends_a_number_of_test_events_a_minute_and_others_have_theirs(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        ada, other_client, bob = signed.token("ada", "one"), signed.token("ada", "two"), signed.token("bob", "one")
        assert send_test(signed, ada)["result"]["eventIds"] == []  # nobody waits: that costs nothing
        for token in (ada, bob):
            assert "result" in asked(signed, token, "events/poll", TYPE)[2]
        assert all(len(send_test(signed, ada)["result"]["eventIds"]) == 1 for _ in range(MAX_TESTS))
        for token in (ada, other_client):
            error = send_test(signed, token)["error"]
            assert (error["code"], error["data"]) == (-32013, {"limit": "tests", "max": MAX_TESTS})
            assert "try again in" in error["message"]
        assert len(send_test(signed, bob)["result"]["eventIds"]) == 1
