"""The URL of Redis: its forms, and that no error and no log shows its secrets."""

import asyncio
import datetime
import gc
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.features.replicas.bus.conftest import use_bus, with_prefix
from tests.servers.redis_server import RedisProcess, redis_server
from tests.servers.reserved_port import kept_port
from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.features.nodes.tls.authority import Authority
from toolgate.server.features.replicas.open_bus import open_bus

PASSWORD = "s3cret%word"
ENCODED = "s3cret%25word"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisProcess]:
    """A server that asks for a password, and has a user `ada` with the same."""
    with redis_server(
        "--requirepass", PASSWORD, "--user", "ada", "on", f">{PASSWORD}", "~test-*", "&test-*", "+@all"
    ) as server:
        yield server


async def is_usable(bus: Bus) -> None:
    await bus.keys.set("a", b"1", 60)
    assert await bus.keys.get("a") == b"1"
    assert await bus.replica.list_names() == [bus.replica.name]


def test_each_form_of_the_url_connects(guarded: RedisProcess) -> None:
    port = guarded.port
    for url in (
        f"redis://:{ENCODED}@127.0.0.1:{port}",
        f"redis://ada:{ENCODED}@127.0.0.1:{port}/0",
        f"redis://default:{ENCODED}@localhost:{port}/3",
        f"unix://default:{ENCODED}@{guarded.socket}?db=2",
    ):
        asyncio.run(use_bus(url, is_usable, with_prefix()))


def test_a_wrong_password_is_an_error_without_it(guarded: RedisProcess, caplog: pytest.LogCaptureFixture) -> None:
    async def check(bus: Bus) -> None:
        with pytest.raises(BusUnreachableError) as failure:
            await bus.keys.get("a")
        assert str(failure.value) == f"Redis at 127.0.0.1:{guarded.port} refuses the user or the password"
        assert failure.value.__cause__ is None

    with caplog.at_level(logging.DEBUG):
        for password in ("wr0ng-secret", ""):
            url = f"redis://ada:{password}@127.0.0.1:{guarded.port}"
            asyncio.run(use_bus(url, check, with_prefix()))
    assert "refuses the user or the password" in caplog.text
    assert "wr0ng-secret" not in caplog.text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:s3cret@host", "must begin with redis://, rediss:// or unix://"),
        ("s3cret", "must begin with redis://, rediss:// or unix://"),
        ("redis://user:s3cret@host:pa/ss", "is invalid"),
        ("redis://[s3cret", "is invalid: it must be redis://:PASSWORD@HOST:PORT, with %2F for /"),
        ("redis://user:s3cret\u2100@host", "is invalid"),
        ("redis://user:s3cret@", "has no host: redis://HOST:6379"),
        ("redis://user:s3cret@host/0?socket_timeout=9", "has an unknown option: socket_timeout"),
        ("unix://user:s3cret@", "has no path: unix:///PATH"),
        ("redis://user:s3cret@host?db=s3cret", "is invalid"),
        ("redis://user:s3cret@host/s3cret", "has no number of a database: redis://HOST:6379/0"),
    ],
)
def test_an_invalid_url_is_refused_without_its_secrets(url: str, text: str) -> None:
    with pytest.raises(ValueError, match="the URL of Redis") as failure:
        asyncio.run(open_bus(url))
    assert text in str(failure.value)
    assert "s3cret" not in repr(failure.value) + repr(failure.value.__cause__)


def test_a_name_that_is_not_found_is_an_error_in_words() -> None:
    async def check(bus: Bus) -> None:
        with pytest.raises(BusUnreachableError, match=r"^Redis at redis\.invalid:6379 can't be reached"):
            await bus.keys.get("a")

    asyncio.run(use_bus("redis://redis.invalid", check, with_prefix()))


def test_the_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path, datetime.datetime.now(datetime.UTC))
    certificate = tmp_path / "redis.pem"
    certificate.write_bytes(authority.issue_node(["127.0.0.1"]))
    port = kept_port()
    tls = {"port": str(port), "cert-file": str(certificate), "key-file": str(certificate), "auth-clients": "no"}
    options = [word for name, value in tls.items() for word in (f"--tls-{name}", value)]

    async def check(bus: Bus) -> None:
        with pytest.raises(BusUnreachableError, match="TLS fails, certificate verify failed"):
            await bus.keys.get("a")

    with redis_server(*options, "--tls-ca-cert-file", str(authority.file)):
        url = f"rediss://127.0.0.1:{port}"
        asyncio.run(use_bus(f"{url}?ssl_ca_certs={authority.file}", is_usable, with_prefix()))
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            asyncio.run(use_bus(url, check, with_prefix()))
            gc.collect()  # asyncio leaves a handshake that is cancelled to the garbage collection
