"""Challenges are read as servers write them: with and without quotes, beside others, and broken."""

import time

import pytest

from toolgate.server.cli.mcp_client.challenge import MAX_CHALLENGE, parse_challenge

WRITE = {"error": "insufficient_scope", "scope": "read write"}


@pytest.mark.parametrize(
    ("header", "parameters"),
    [
        ('Bearer error="insufficient_scope", scope="read write"', WRITE),
        ('bearer ERROR = insufficient_scope ,scope\t=\t"read write"', WRITE),
        ('Basic realm="a, b", Bearer error=insufficient_scope, scope="read write"', WRITE),
        ('Bearer error=insufficient_scope, scope="read write", Basic realm="x", scope=other', WRITE),
        ('Negotiate dG9rZW4==, Bearer error=insufficient_scope, scope="read write"', WRITE),
        ('DPoP algs="ES256", error="insufficient_scope", scope="read write"', {"algs": "ES256", **WRITE}),
        (r'Bearer realm="say \"scope=all\"", scope=read', {"realm": 'say "scope=all"', "scope": "read"}),
        ("Bearer resource_metadata=https://far.example/x?a=b", {"resource_metadata": "https://far.example/x?a=b"}),
        ("Bearer scope=read, scope=write", {"scope": "read"}),
        ("Bearer realm=, scope=read", {"scope": "read"}),
        ('Bearer scope="read', {}),
        ("Bearer", {}),
        ("", {}),
        ('=, = =,"\\', {}),
    ],
)
def test_a_challenge_has_its_parameters(header: str, parameters: dict[str, str]) -> None:
    assert parse_challenge(header) == parameters


@pytest.mark.parametrize("part", ["a", "a=", "a =", 'a="', 'a="\\', "a ", " ", '"', "=", "a=b", "a,"])
def test_a_challenge_takes_no_longer_than_its_length(part: str) -> None:
    header = part * MAX_CHALLENGE
    began = time.process_time()
    for _ in range(10):
        parse_challenge(header)
    assert time.process_time() - began < 2.0
