"""Metadata are found at each place where the specifications have them."""

import asyncio

import pytest

from tests.servers.lying_oauth_server import LyingServer
from toolgate.server.cli.sign_in.discovery import discover
from toolgate.server.cli.sign_in.requests import LoginError, OAuthRequests

RESOURCE = "/.well-known/oauth-protected-resource"
ISSUER = "/.well-known/oauth-authorization-server"


def find_issuer(server: LyingServer) -> str:
    url = f"{server.url}/mcp"
    return asyncio.run(discover(OAuthRequests(url), url))[0].issuer


@pytest.mark.parametrize(
    "place",
    [
        "/.well-known/oauth-authorization-server/tenant",
        "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ],
)
def test_an_issuer_with_a_path_is_found(lying: LyingServer, place: str) -> None:
    issuer = f"{lying.url}/tenant"
    lying.answers[f"{RESOURCE}/mcp"]["authorization_servers"] = [issuer]
    metadata = {**lying.answers.pop(ISSUER), "issuer": issuer}
    with pytest.raises(LoginError, match="has no metadata of an authorization server"):
        find_issuer(lying)
    lying.answers[place] = metadata
    assert find_issuer(lying) == issuer


def test_an_issuer_at_the_root_is_found_by_openid(lying: LyingServer) -> None:
    lying.answers["/.well-known/openid-configuration"] = lying.answers.pop(ISSUER)
    assert find_issuer(lying) == lying.url


def test_the_metadata_of_a_resource_are_found_without_a_challenge(lying: LyingServer) -> None:
    lying.challenge = "Bearer"
    assert find_issuer(lying) == lying.url
    lying.answers[RESOURCE] = lying.answers.pop(f"{RESOURCE}/mcp")
    assert find_issuer(lying) == lying.url
    del lying.answers[RESOURCE]
    with pytest.raises(LoginError, match="does not say how to sign in"):
        find_issuer(lying)
