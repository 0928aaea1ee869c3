"""An open page says live what does not answer, by name: a node that was killed, Redis, and PostgreSQL.

After the restart of a node or a server the commands from before are there without a call."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.chromium import people
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import PASSWORD
from tests.server.features.nodes.nodes import running_node
from tests.servers.home_page_server import AppUser
from tests.servers.postgres import Postgres
from tests.servers.redis_server import RedisProcess
from tests.servers.replicas import running_replicas
from tests.servers.reserved_port import kept_port
from tests.transports.web.conftest import is_live

# A browser shows a page again that it kept, as the button for the page before does. The stream ends in between.
LEAVE = "dispatchEvent(new Event('pagehide'))"
RETURN = "dispatchEvent(new Event('pageshow'))"
OTHER_COOKIE = f"toolgate-%d-session={'x' * 43}"


@pytest.fixture
def arrive(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens the first page of a server for a person, live."""
    with people(chromium) as arriving:

        def come(signed: Signed, name: str) -> Any:
            page = arriving()
            page.goto(f"{signed.site.url}/login")
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            is_live(page)
            return page

        yield come


def shows(page: Any, selector: str, text: str) -> None:
    page.locator(selector, has_text=text).wait_for()


def test_a_killed_node_is_named_and_its_commands_come_back_without_a_call(
    arrive: Callable[..., Any], tmp_path: Path
) -> None:
    with (
        running_node(tmp_path / "node", "--sandbox", "none", "--name", "attic") as node,
        signed_site(tmp_path, "--node", str(node.address), workspace=False) as signed,
    ):
        ada = AppUser(signed, "ada", "App")
        silent, loud = ada.run("exec sleep 900"), ada.run("echo said; exec sleep 900")
        page = arrive(signed, "ada")
        shows(page, "#member-1", "answers")
        shows(page, f"#run-{silent}", "running")
        page.wait_for_function("id => document.getElementById(id).textContent === 'said\\n'", arg=f"output-{loud}")
        node.kill()
        shows(page, "#health", "no commands")
        shows(page, "#health", "No node answers (attic)")
        shows(page, "#outage", "attic")
        shows(page, "#member-1", "away")
        shows(page, "#run-fault", "The machine that runs your commands can’t be reached.")
        node.start()
        for id in (silent, loud):
            shows(page, f"#run-{id}", "lost")
        shows(page, "#health", "ready")
        page.locator("#outage, #run-fault").wait_for(state="detached")
        page.reload()
        is_live(page)
        assert page.locator(f"#output-{loud}").text_content() == "said\n"
        row = page.locator(f"#run-{silent}").inner_text()
        assert "lost" in row and "took" not in row and "seen after" not in row
        text = ada.call("ListBgTasks")["content"][0]["text"]
        assert re.search(rf"^{silent}  .*  is lost: the server can't tell how it ended$", text, re.MULTILINE)


def test_after_a_restart_of_the_server_the_commands_from_before_are_there_without_a_call(
    arrive: Callable[..., Any], tmp_path: Path
) -> None:
    with signed_site(tmp_path) as signed:
        ada = AppUser(signed, "ada", "App")
        AppUser(signed, "zoe", "App")
        id = ada.run("exec sleep 900")
        signed.site.kill()
    with signed_site(tmp_path) as signed:
        shows(arrive(signed, "ada"), f"#run-{id}", "lost")
        assert arrive(signed, "zoe").locator("[id^=run-]").count() == 0


def test_an_open_page_says_that_the_server_is_away_until_it_answers_again(
    arrive: Callable[..., Any], tmp_path: Path
) -> None:
    port = f"--port={kept_port()}"
    with signed_site(tmp_path, port) as signed:
        AppUser(signed, "ada", "App")
        page = arrive(signed, "ada")
        notice = page.locator("#unreachable")
        assert notice.is_hidden()
        signed.site.kill()
        shows(page, "#unreachable", "can’t reach the server")
    with signed_site(tmp_path, port):
        notice.wait_for(state="hidden")
        is_live(page)


@pytest.mark.brief("Redis stops")  # the next test is about PostgreSQL
@pytest.mark.parametrize(
    "how", ["Redis stops", "PostgreSQL stops", pytest.param("PostgreSQL hangs", marks=pytest.mark.soak)]
)
def test_the_backend_that_is_away_is_named_and_not_the_node(
    how: str, arrive: Callable[..., Any], postgres: Postgres, tmp_path: Path
) -> None:
    backend = how.split()[0]
    with running_replicas(tmp_path, postgres, "--auth", "oauth", count=1) as replicas:
        signed = Signed(replicas.sites[0], replicas.public_url)
        AppUser(signed, "ada", "App")
        page = arrive(signed, "ada")
        server = page.locator("#part-server")
        row = server.locator(".member", has_text=backend)
        row.get_by_text("answers").wait_for()
        node = server.locator(".member", has_text="Node").get_by_text("answers")
        node.wait_for()  # its name is in the database from then on
        with without(how, replicas.redis, postgres):
            row.get_by_text("away").wait_for()
            shows(page, "#health", f"{backend} does not answer")
            shows(page, "#outage", f"{backend} does not answer")
            assert "not ready" in server.inner_text() and "No node" not in server.inner_text()
            node.wait_for()
            assert page.locator("#live").inner_text() == "live"
            if how.endswith("stops"):
                loaded = page.context.request.get(f"{signed.site.url}/", headers={"accept": "text/html"})
                assert backend in loaded.text() and "No node" not in loaded.text()
        shows(page, "#health", "The server accepts calls.")
        row.get_by_text("answers").wait_for()


def test_a_page_that_returns_while_postgresql_is_away_says_so(
    arrive: Callable[..., Any], postgres: Postgres, tmp_path: Path
) -> None:
    with running_replicas(tmp_path, postgres, "--auth", "oauth", count=1) as replicas:
        signed = Signed(replicas.sites[0], replicas.public_url)
        AppUser(signed, "ada", "App")
        page = arrive(signed, "ada")
        row = page.locator("#part-server .member", has_text="PostgreSQL")
        row.get_by_text("answers").wait_for()
        page.evaluate(LEAVE)
        with without("PostgreSQL stops", replicas.redis, postgres):
            page.evaluate(RETURN)
            row.get_by_text("away").wait_for()
            shows(page, "#outage", "PostgreSQL does not answer")
            is_live(page)
            stranger = replicas.sites[0].ask("GET", "/events", cookie=OTHER_COOKIE % replicas.sites[0].port)
            assert stranger[0].status == 503
        row.get_by_text("answers").wait_for()


@contextlib.contextmanager
def without(how: str, redis: RedisProcess, postgres: Postgres) -> Iterator[None]:
    """Do without Redis or PostgreSQL for a while."""
    match how:
        case "PostgreSQL hangs":
            with postgres.hanging():
                yield
        case "PostgreSQL stops":
            postgres.stop()
            yield
            postgres.start()
        case _:
            redis.kill()
            yield
            redis.start()
