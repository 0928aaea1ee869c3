"""A new sign-in provider is one class and one row of `sign_in_methods.SIGN_IN_METHODS`."""

import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.server.auth.login.test_providers import approve, come_back, to_consent
from tests.server.auth.sign_in_server import DOCUMENT, sign_in_server
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.auth.login.providers import Fetch
from toolgate.server.auth.login.sessions import derive_state
from toolgate.server.base.principals import sign_in_methods
from toolgate.server.base.principals.sign_in_methods import SignInMethod

GUILD = SignInMethod("guild", issuer="https://guild.example", provider=f"{__name__}:GuildProvider", title="the Guild")

OPTIONS_WITH_THE_ROW = """
from pathlib import Path
from toolgate.server.base.principals import sign_in_methods
row = sign_in_methods.SignInMethod("guild", issuer="https://guild.example", provider="x:Y", title="the Guild")
sign_in_methods.SIGN_IN_METHODS = (*sign_in_methods.SIGN_IN_METHODS, row)

from toolgate.server.config.options import OPTIONS
from toolgate.server.calls.policy.rules import parse_rules
from toolgate.server.base.principals.sign_in_methods import format_identity

options = {option.name: option for option in OPTIONS}
print(options["guild-client"].help)
print(options["login"].parse("guild"), options["allow-users"].split_variable("guild:7:github:8"))
print(*parse_rules(["guild:7=Bash"]), format_identity("https://guild.example", "7"))
"""


class GuildProvider:
    key = "guild"
    title = "the Guild"

    def __init__(self, issuer: str, client: str, secret: str, allowlist: UserAllowlist, fetch: Fetch) -> None:
        self.issuer = issuer
        self._client = client
        self._allowlist = allowlist

    async def authorize_url(self, back: str, ticket: str, select_account: bool = False) -> str:
        return f"{self.issuer}/enter?state={derive_state(ticket)}&client={self._client}"

    async def complete_sign_in(self, answer: Mapping[str, str], back: str, ticket: str) -> Person:
        return Person(self.issuer, answer["member"], f"member {answer['member']}")

    def permits(self, person: Person) -> bool:
        return self._allowlist.permits(self.key, person.subject, person.email)


def test_a_person_signs_in_by_a_provider_that_is_one_class_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in_methods, "SIGN_IN_METHODS", (*sign_in_methods.SIGN_IN_METHODS, GUILD))
    with sign_in_server(tmp_path, "guild", credentials={"guild": ("us", "")}, allow_users=("guild:7",)) as made:
        browser = made.browser()
        sent = approve(browser, to_consent(made, browser, "guild"))
        assert sent.location.startswith("https://guild.example/enter?")
        state = urllib.parse.parse_qs(sent.location.partition("?")[2])["state"][0]
        back = come_back(browser, {"state": state, "member": "7"})
        assert back.location.startswith(f"{made.app}?code=")
        assert made.granted() == [(DOCUMENT, "member 7", "tools:read")]


def test_a_second_row_whose_people_have_any_issuer_is_refused_and_one_with_a_value_names_their_issuer() -> None:
    with pytest.raises(TypeError, match="cloud needs `issuer`"):
        SignInMethod("cloud", "URL", provider=f"{__name__}:GuildProvider")
    assert SignInMethod("cloud", "URL", "guild:cloud", provider=f"{__name__}:GuildProvider").form == "cloud=URL"


def test_its_options_prefix_and_rules_come_from_the_row() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPTIONS_WITH_THE_ROW], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "file with the client id at the Guild and, on the next line, its secret",
        "guild ['guild:7', 'github:8']",
        "guild:7=Bash guild:7",
    ]
