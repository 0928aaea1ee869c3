"""Verification of endpoints, against real sockets and real TLS: what passes, what fails, and how often it is tried."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.server.features.events.webhooks.fake_receiver import (
    ACCEPTED,
    HOST,
    SECRET,
    delivery,
    echo_challenge,
    receiver,
    sender,
)
from tests.tools.api.outbound.test_fetch import gibberish, headless, run
from tests.tools.fake_web_site import Answer, Request, Site, never, redirect
from toolgate.server.features.events.webhooks.challenge import (
    ChallengeRateError,
    EndpointError,
    EndpointVerifier,
    Reason,
)
from toolgate.server.features.events.webhooks.delivery import Disposition
from toolgate.server.features.events.webhooks.sender import CallbackUrlError

SHORT = 0.5


@asynccontextmanager
async def endpoint(
    folder: Path, page: Answer, *, timeout: float = 10.0, **limits: float
) -> AsyncIterator[tuple[Site, EndpointVerifier]]:
    receiving = receiver(folder, {"/hook": page}, names=(HOST, "other.example"))
    async with receiving as (place, authority), sender(authority, timeout=timeout) as sending:
        yield place, EndpointVerifier(sending, **limits)  # type: ignore[arg-type]


async def verify(verifier: EndpointVerifier, url: str, principal: str = "p") -> None:
    await verifier.verify_endpoint(url, SECRET, subscription="sub_pending", principal=principal)


def failure(folder: Path, page: Answer, *, timeout: float = 10.0) -> tuple[Reason, str]:
    async def scenario() -> tuple[Reason, str]:
        async with endpoint(folder, page, timeout=timeout) as (place, verifier):
            with pytest.raises(EndpointError) as caught:
                await verify(verifier, place.url("/hook", HOST))
            assert (verifier.verified, dict(verifier.failures)) == (0, {caught.value.reason: 1})
            return caught.value.reason, str(caught.value)

    return run(scenario())


def test_an_endpoint_that_returns_the_challenge_passes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with endpoint(tmp_path, echo_challenge) as (place, verifier):
            for _ in range(2):
                await verify(verifier, place.url("/hook", HOST))
            assert verifier.verified == 2
        for request in place.requests:
            signed = Webhook(SECRET.to_text()).verify(request.body, request.headers)
            assert signed == {"type": "verification", "challenge": json.loads(request.body)["challenge"]}
            assert request.headers["x-mcp-subscription-id"] == "sub_pending"
        assert len({request.body for request in place.requests}) == 2
        assert len({request.headers["webhook-id"] for request in place.requests}) == 2
        assert all(request.headers["webhook-id"].startswith("msg_verification_") for request in place.requests)

    run(scenario())


def answer(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def page(request: Request) -> None:
        challenge = json.loads(request.body)["challenge"].encode()
        content = body.replace(b"CHALLENGE", challenge)
        await request.send(status, {"content-length": str(len(content)), **headers}, content)

    return page


WRONG: dict[str, Answer] = {
    "nothing": ACCEPTED,
    "no JSON": answer(b"CHALLENGE"),
    "a list": answer(b'["CHALLENGE"]'),
    "a number": answer(b'{"challenge": 1}'),
    "no challenge": answer(b'{"type": "verification"}'),
    "another": answer(b'{"challenge": "CHALLENG"}'),
    "longer": answer(b'{"challenge": "CHALLENGEx"}'),
    "not ASCII": answer('{"challenge": "é"}'.encode()),
    "half a surrogate pair": answer(b'{"challenge": "\\ud800"}'),
    "the request": answer(b'{"type": "verification", "challenge": "CHALLENGE"}'),
    "the challenge with more": answer(b'{"ok": true, "challenge": "CHALLENGE"}'),
    "nested": answer(b"[" * 4_000),
    "too long": answer(b'{"challenge": "CHALLENGE"}' + b" " * 5_000),
    "a redirect": redirect("/hook"),
}


@pytest.mark.parametrize("name", WRONG)
def test_any_other_answer_fails(tmp_path: Path, name: str) -> None:
    assert failure(tmp_path, WRONG[name])[0] == "challenge_failed"


def test_a_challenge_may_come_with_spaces_and_another_status_of_success(tmp_path: Path) -> None:
    async def scenario() -> None:
        page = answer(b' { "challenge" :"CHALLENGE"}\n', 201)
        async with endpoint(tmp_path, page) as (place, verifier):
            await verify(verifier, place.url("/hook", HOST))

    run(scenario())


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (answer(b'{"challenge": "CHALLENGE"}', 404), "http_4xx"),
        (answer(b'{"challenge": "CHALLENGE"}', 500), "http_5xx"),
        (never, "timeout"),
        (gibberish, "connection_refused"),
        (headless, "connection_refused"),
    ],
)
def test_a_failure_has_one_word(tmp_path: Path, page: Answer, reason: str) -> None:
    assert failure(tmp_path, page, timeout=SHORT if reason == "timeout" else 10.0)[0] == reason


def test_nothing_of_the_answer_is_in_the_error(tmp_path: Path) -> None:
    secret = (403, {"x-secret": "internal"}, b"the password is internal")
    assert failure(tmp_path, secret) == ("http_4xx", "the callback endpoint did not pass verification: http_4xx")


def test_a_wrong_certificate_a_private_address_and_a_bad_url_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with endpoint(tmp_path, echo_challenge) as (place, verifier):
            for url, reason in (
                (place.url("/hook", "third.example"), "tls_error"),
                ("https://10.0.0.7/", "connection_refused"),
            ):
                with pytest.raises(EndpointError) as caught:
                    await verify(verifier, url)
                assert caught.value.reason == reason
            with pytest.raises(CallbackUrlError):
                await verify(verifier, "http://hooks.example/")

    run(scenario())


def test_dns_that_changes_its_mind_after_the_challenge_gets_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        answers = iter([["127.0.0.1"], ["169.254.169.254"]])

        async def rebinding(host: str, port: int) -> Sequence[str]:
            return next(answers)

        receiving = receiver(tmp_path, {"/hook": echo_challenge})
        async with receiving as (place, authority), sender(authority, resolve=rebinding) as sending:
            url = place.url("/hook", HOST)
            await verify(EndpointVerifier(sending), url)
            outcome = await sending.send(delivery(url))
            assert (outcome.disposition, outcome.error) == (Disposition.RETRY, "connection_refused")
            assert len(place.requests) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("limit", "calls", "free"),
    [
        ("per_principal", [("p", HOST), ("p", "other.example")], ("q", HOST)),
        ("per_host", [("p", HOST), ("q", HOST.upper())], ("p", "other.example")),
        ("all", [("p", HOST), ("q", "other.example")], None),
    ],
)
def test_challenges_are_limited(
    tmp_path: Path, limit: str, calls: list[tuple[str, str]], free: tuple[str, str] | None
) -> None:
    now = [1000.0]

    async def scenario() -> None:
        limits = {limit: 2, "now": lambda: now[0]}
        async with endpoint(tmp_path, echo_challenge, **limits) as (place, verifier):  # type: ignore[arg-type]
            for principal, host in calls:
                await verify(verifier, place.url("/hook", host), principal)
            with pytest.raises(ChallengeRateError) as caught:
                await verify(verifier, place.url("/hook", calls[0][1]), calls[0][0])
            assert caught.value.wait == 60
            assert len(place.requests) == 2
            if free is not None:
                await verify(verifier, place.url("/hook", free[1]), free[0])
            now[0] += 61
            await verify(verifier, place.url("/hook", calls[0][1]), calls[0][0])

    run(scenario())


def test_challenges_that_hang_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with endpoint(tmp_path, never, timeout=SHORT) as (place, verifier):
            checks = (verify(verifier, place.url("/hook", HOST), f"p{number}") for number in range(20))
            ends = await asyncio.gather(*checks, return_exceptions=True)
            assert [getattr(end, "reason", end) for end in ends] == ["timeout"] * 20

    run(scenario())
