"""The list of hosts that one program may reach."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.tools.fake_web_site import site
from tests.tools.workspace.sandbox.egress.test_sandbox_proxy import HERE, NOTHING, plain, run, sent, tunnel, way_out
from toolgate.tools.api.outbound.errors import AddressRefusedError
from toolgate.tools.workspace.sandbox.egress.host_rules import HostRules
from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import MAX_TOLD

TABLE = "[mounts.far]"
REFUSAL = f'refused: out.test is not in the list; add "out.test" to network of {TABLE}'
LIST = ("api.example.com", "*.Example.org", "10.0.0.0/8", "2001:4860:4860::8888", "bücher.example")


def allows(host: str, *entries: str) -> bool:
    try:
        HostRules.parse(entries or LIST, TABLE).check_host(host)
    except AddressRefusedError as error:
        assert str(error) == f'refused: {host} is not in the list; add "{host}" to network of {TABLE}'
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        *("api.example.com", "API.example.com", "api.example.com.", "a.example.org", "a.b.example.org"),
        *("10.1.2.3", "2001:4860:4860::8888", "2001:4860:4860:0::8888", "xn--bcher-kva.example"),
    ],
)
def test_a_host_of_the_list_is_allowed(host: str) -> None:
    assert allows(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "example.com",
            "a.api.example.com",
            "xapi.example.com",
            "example.org",
            "evilexample.org",
            "api.example.com.x",
        ),
        *(
            "11.0.0.1",
            "167772161",
            "0xa000001",
            "10.1",
            "::ffff:10.0.0.1",
            "2001:4860:4860::8844",
            "",
            "api.example.com.x",
        ),
    ],
)
def test_another_host_is_refused_with_the_line_that_allows_it(host: str) -> None:
    assert not allows(host)


def test_a_star_allows_every_host_and_an_empty_list_none() -> None:
    assert allows("any.example", "*") and allows("1.2.3.4", "*")
    with pytest.raises(AddressRefusedError):
        HostRules.parse((), TABLE).check_host("any.example")


@pytest.mark.parametrize(
    "entry", ["**", "*example.com", "*.", "a.*.com", "*.10.0.0.0/8", "https://a.b", "a b", "a:443"]
)
def test_what_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        HostRules.parse([entry], TABLE)


def test_a_host_that_is_not_in_the_list_is_not_even_looked_up() -> None:
    asked: list[str] = []
    told: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def work() -> None:
        async with site({"/": b"page"}) as place, way_out(HERE, resolve=resolve) as (proxy, port):
            proxy.restrict(HostRules.parse(["in.test"], TABLE), told.append)
            assert (await sent(port, plain(f"http://in.test:{place.port}/"))).endswith(b"page")
            for request in (plain("http://out.test/"), tunnel("out.test:443")):
                line, _, rest = (await sent(port, request)).decode().partition("\r\n")
                assert (
                    line == f'HTTP/1.1 403 refused: out.test is not in the list; add "out.test" to network of {TABLE}'
                )
                assert rest.endswith(f'add "out.test" to network of {TABLE}\n')
        assert asked == ["in.test"]
        assert told == [REFUSAL]

    run(work())


def test_a_name_does_not_open_the_private_network_and_an_address_in_the_list_does() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async def work() -> None:
        async with site({"/": b"page"}) as place:
            request = plain(f"http://in.test:{place.port}/")
            async with way_out(NOTHING, resolve=resolve) as (proxy, port):
                proxy.restrict(HostRules.parse(["*"], TABLE), lambda _: None)
                why = 'in.test has the address 127.0.0.1, which is loopback; add "127.0.0.1" to network of [mounts.far]'
                assert f"403 refused: {why}\r\n".encode() in await sent(port, request)
                assert place.connections == 0
            async with way_out(NOTHING, resolve=resolve) as (proxy, port):
                proxy.restrict(HostRules.parse(["in.test", "127.0.0.1"], TABLE), lambda _: None)
                assert (await sent(port, request)).endswith(b"page")

    run(work())


def test_a_program_that_asks_for_any_number_of_hosts_does_not_fill_the_log() -> None:
    told: list[str] = []

    async def work() -> None:
        async with way_out(NOTHING) as (proxy, port):
            proxy.restrict(HostRules.parse([], TABLE), told.append)
            answers = await asyncio.gather(*(sent(port, tunnel(f"h{n}.test:443")) for n in range(MAX_TOLD + 9)))
            assert all(b" 403 refused: " in answer for answer in answers)
        assert len(told) == MAX_TOLD

    run(work())
