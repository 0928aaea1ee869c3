"""The example plugins through a client: on the real server, with fake services."""

import json
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server
from tests.deploy.fake_service import Answer, FakeService, fake_service
from tests.servers.isolated_plugins import needs_isolation

Start = Callable[..., Server]
CURRENT = {"temperature_2m": 21.5, "relative_humidity_2m": 40, "wind_speed_10m": 8.1, "weather_code": 63}
SUNNY = json.dumps({"latitude": 41.875, "current_units": {"temperature_2m": "°C"}, "current": CURRENT}).encode()
ROME = {"city": "Rome", "latitude": 41.89, "longitude": 12.48}
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def sunny(service: FakeService, path: str, body: bytes) -> Answer:
    return 200, {"content-type": "application/json"}, SUNNY


def weather(start: Start, service: FakeService) -> Server:
    return start("--allow-private", "127.0.0.1", env={"OPEN_METEO_URL": service.url})


def journey(server: Server) -> None:
    """List everything, and try each part once."""
    tools = {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert tools >= {"get_weather", "sleep", "progress_test", "logging_test", "search_blog", "read_chunk"}
    (prompt,) = (part for part in server.request("prompts/list")["prompts"] if part["name"] == "code-review")
    assert [(argument["name"], argument.get("required")) for argument in prompt["arguments"]] == [
        ("language", True),
        ("code", None),
    ]
    (quote,) = (part for part in server.request("resources/list")["resources"] if part["name"] == "quote")
    assert (quote["uri"], quote["mimeType"]) == ("bacio:///quote", "text/plain")

    assert server.text("sleep", {"milliseconds": 20}) == "Waited for 20 milliseconds"
    assert server.text("get_weather", ROME) == "Weather in Rome: 21.5 °C, rain, humidity 40 %, wind 8.1 km/h"
    level = {"io.modelcontextprotocol/logLevel": "debug"} if server.revision == STATELESS else {}
    if server.revision != STATELESS:
        server.request("logging/setLevel", {"level": "debug"})
    server.text("logging_test", **level)
    logged = [note for note in server.notes("notifications/message") if note.get("logger") == "logging_test"]
    assert [note["level"] for note in logged] == LEVELS
    server.text("progress_test", progressToken="ten")
    steps = [note for note in server.notes("notifications/progress") if note["progressToken"] == "ten"]
    assert [(note["progress"], note["total"]) for note in steps] == [(n, 10) for n in range(1, 11)]

    (held,) = server.request("resources/read", {"uri": "bacio:///quote"})["contents"]
    assert (held["uri"], held["mimeType"]) == ("bacio:///quote", "text/plain") and held["text"].endswith(".")
    review = {"name": "code-review", "arguments": {"language": "C++", "code": "int main() {}"}}
    (message,) = server.request("prompts/get", review)["messages"]
    assert message["role"] == "user"
    assert "Review this C++ code" in message["content"]["text"]
    assert message["content"]["text"].endswith("```c++\nint main() {}\n```")


@pytest.mark.pairs
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", STATELESS])
def test_a_client_lists_everything_and_tries_each_part(everywhere: Start, revision: str) -> None:
    with fake_service(sunny) as service:
        options = ("--allow-private", "127.0.0.1")
        journey(everywhere(*options, env={"OPEN_METEO_URL": service.url}, revision=revision))


@needs_isolation
def test_the_parts_work_the_same_in_processes_of_their_own(examples: Start) -> None:
    with fake_service(sunny) as service:
        options = ("--isolate-plugins", "--allow-private", "127.0.0.1")
        journey(examples(*options, env={"OPEN_METEO_URL": service.url}))


def test_the_weather_service_is_asked_for_the_place_and_nothing_else(examples: Start) -> None:
    with fake_service(sunny) as service:
        server = weather(examples, service)
        text = server.text("get_weather", {"city": "São & co?#", "latitude": "-33.45", "longitude": " 170 "})
        assert text.startswith("Weather in São & co?#: 21.5 °C")
        ((target, _),) = service.asked
        url = urlsplit(target)
        assert url.path == "/v1/forecast"
        assert parse_qs(url.query, strict_parsing=True) == {
            "latitude": ["-33.45"],
            "longitude": ["170.0"],
            "current": ["temperature_2m,relative_humidity_2m,wind_speed_10m,weather_code"],
        }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"latitude": 90.01}, "latitude must be a number from -90 to 90"),
        ({"latitude": "north"}, "latitude must be a number"),
        ({"latitude": "nan"}, "latitude must be a number"),
        ({"latitude": "41&x=1"}, "latitude must be a number"),
        ({"longitude": -181}, "longitude must be a number from -180 to 180"),
        ({"longitude": "inf"}, "longitude must be a number"),
        ({"longitude": True}, 'argument "longitude"'),
        ({"city": ""}, 'argument "city"'),
    ],
)
def test_a_place_that_is_none_is_refused_and_never_asked_for(
    examples: Start, wrong: dict[str, object], named: str
) -> None:
    with fake_service(sunny) as service:
        assert named in weather(examples, service).error("get_weather", {**ROME, **wrong})
        assert service.asked == []


FAILURES: dict[str, tuple[Answer, str]] = {
    "a status of 500": ((500, {}, b"secret"), "answered with status 500"),
    "no json": ((200, {}, b"<html>"), "can't be read"),
    "no utf-8": ((200, {}, b'{"current": "\xff"}'), "can't be read"),
    "no weather": ((200, {}, b'{"latitude": 1}'), "missing required field `current`"),
    "a word for a number": ((200, {}, b'{"current": {"temperature_2m": "warm"}}'), "Expected `float`"),
    "too much": ((200, {}, b" " * 70_000 + SUNNY), "can't be read"),
    "a way into the network": ((302, {"location": "http://127.0.0.2/"}, b""), "127.0.0.2 is loopback"),
    "a way to a file": ((302, {"location": "file:///etc/passwd"}, b""), "only http and https"),
    "a circle": ((302, {"location": "/v1/forecast"}, b""), "redirects more than 3 times"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_weather_service_that_fails_is_an_error_of_the_tool(examples: Start, failure: str) -> None:
    answer, named = FAILURES[failure]
    with fake_service(lambda *_: answer) as service:
        text = weather(examples, service).error("get_weather", ROME)
        assert named in text and "secret" not in text


def test_a_weather_service_that_has_moved_is_followed(examples: Start) -> None:
    def moved(service: FakeService, path: str, body: bytes) -> Answer:
        return (301, {"location": "/moved"}, b"") if path != "/moved" else sunny(service, path, body)

    with fake_service(moved) as service:
        assert "21.5 °C" in weather(examples, service).text("get_weather", ROME)


def test_a_weather_service_that_is_not_there_or_may_not_be_reached_is_an_error_of_the_tool(examples: Start) -> None:
    with fake_service(sunny) as service:
        server = examples(env={"OPEN_METEO_URL": service.url})
        assert "--allow-private" in server.error("get_weather", ROME)
        assert service.asked == []
    server = weather(examples, service)  # it has just ended
    assert "could not connect" in server.error("get_weather", ROME)


def test_a_weather_service_that_says_nothing_is_given_up(examples: Start) -> None:
    def slow(service: FakeService, path: str, body: bytes) -> Answer:
        service.over.wait()
        return sunny(service, path, body)

    with fake_service(slow) as service:
        server = weather(examples, service)
        begun = time.monotonic()
        assert "did not come in full within 5 s" in server.error("get_weather", ROME)
        assert time.monotonic() - begun < 15


def test_sleep_reports_progress_and_ends_when_it_is_cancelled(examples: Start) -> None:
    server = examples()
    id = server.begin("tools/call", {"name": "sleep", "arguments": {"milliseconds": 40_000}}, progressToken=1)
    server.wait(lambda message: message.get("method") == "notifications/progress")
    server.notify("notifications/cancelled", {"requestId": id})
    begun = time.monotonic()
    assert server.close() == 0
    assert time.monotonic() - begun < 10
    assert not [message for message in server.messages if message.get("id") == id]


@pytest.mark.parametrize("milliseconds", [-1, 40_001, 1.5, "twenty"])
def test_sleep_is_bounded(examples: Start, milliseconds: object) -> None:
    assert 'argument "milliseconds"' in examples().error("sleep", {"milliseconds": milliseconds})


def test_progress_without_a_token_is_not_sent(examples: Start) -> None:
    server = examples()
    assert "no progressToken" in server.text("progress_test")
    assert server.notes("notifications/progress") == []


def test_a_client_gets_log_messages_from_its_level_on(examples: Start) -> None:
    server = examples()
    server.request("logging/setLevel", {"level": "alert"})
    server.text("logging_test")
    assert [note["level"] for note in server.notes("notifications/message")] == ["alert", "emergency"]


def test_the_language_of_a_review_completes(examples: Start) -> None:
    server = examples()
    argument = {"name": "language", "value": "ja"}
    asked = {"ref": {"type": "ref/prompt", "name": "code-review"}, "argument": argument}
    assert server.request("completion/complete", asked)["completion"]["values"] == ["Java", "JavaScript"]


def test_a_review_needs_a_language_and_fences_code_that_has_fences(examples: Start) -> None:
    server = examples()
    with pytest.raises(Refusal) as caught:
        server.request("prompts/get", {"name": "code-review", "arguments": {}})
    assert caught.value.code == -32602
    (message,) = server.request("prompts/get", {"name": "code-review", "arguments": {"language": "Go"}})["messages"]
    assert "the one we last talked about" in message["content"]["text"]
    code = {"name": "code-review", "arguments": {"language": "Go", "code": "// ```"}}
    (message,) = server.request("prompts/get", code)["messages"]
    assert message["content"]["text"].endswith("````go\n// ```\n````")


def test_the_quotes_change(examples: Start) -> None:
    server = examples()
    read = {server.request("resources/read", {"uri": "bacio:///quote"})["contents"][0]["text"] for _ in range(60)}
    assert len(read) > 3  # of twelve; fewer would come once in 10 ** 30 times
