"""The first page, in a real Chromium and over plain HTTP: the public part, a person's running work, and that it reaches
no other person's."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients.chromium import CONTRAST, SIZES, TOO_WIDE, UNNAMED, confirm
from tests.clients.raw_client import PATIENCE, eventually
from tests.clients.raw_http_client import Site, events, site
from tests.needed_features import require
from tests.server.auth.minted_tokens import Signed
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told
from toolgate.server.calls import forms

HOSTILE = "<script>window.bad = 1</script><img src=x onerror='window.bad = 2'>\u202etxt.exe"


# -- every visitor


def test_a_stranger_sees_what_this_is_and_copies_what_an_app_is_told(arrive: Any, signed: Signed, ada: AppUser) -> None:
    require("clients")
    page = arrive()
    url = f"{signed.site.url}/mcp"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=signed.site.url)
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == url
    page.get_by_text("VS Code", exact=True).click()
    page.locator("details[open]").get_by_role("button", name="Copy").click()
    assert eventually(lambda: '"servers"' in page.evaluate("navigator.clipboard.readText()"))
    text = page.content()
    assert "ready" in page.locator(".health").inner_text()
    assert ada.name not in text and ada.app not in text and "csrf" not in text and "hill" not in text


def test_a_program_is_told_the_same_in_json_and_no_more(signed: Signed) -> None:
    for accept in ("*/*", "application/json"):
        response, _, said = signed.site.ask("GET", "/", accept=accept)
        assert (response.status, response.getheader("vary")) == (200, "accept")
        url = signed.site.url
        assert said == {
            "name": "toolgate",
            "status": "ready",
            "sandbox": "none",
            "mcp": f"{url}/mcp",
            "sse": f"{url}/sse",
        }
    response, body, _ = signed.site.ask("HEAD", "/", accept="text/html")
    assert (response.status, body) == (200, b"") and int(response.getheader("content-length") or 0) > 1_000
    response, body, _ = signed.site.ask("GET", "/", accept="text/html,application/xhtml+xml")
    policy = response.getheader("content-security-policy") or ""
    assert response.getheader("content-type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "script-src 'self'; connect-src 'self'" in policy and "unsafe" not in policy
    assert response.getheader("x-content-type-options") == "nosniff"
    loaded = re.findall(rb'(?:src|href)="([^"?]+\.(?:js|css))', body)
    sizes = [len(signed.site.ask("GET", path.decode())[1]) for path in loaded]
    assert len(sizes) == 3 and len(body) + sum(sizes) < 60_000
    for method, path, status in (("POST", "/", 303), ("DELETE", "/", 405), ("GET", "/events", 401)):
        form = {"content_type": "application/x-www-form-urlencoded"} if method == "POST" else {}
        assert signed.site.ask(method, path, b"stop=1" if form else None, **form)[0].status == status


def test_without_sign_in_every_user_of_this_machine_sees_running_work(shared: Site) -> None:
    response, body, _ = shared.ask("GET", "/", accept="text/html")
    assert response.status == 200 and b'data-events="/events"' in body and b"/login" not in body
    assert shared.ask("GET", "/", accept="text/html", host="evil.example")[0].status == 421
    cookie = (response.getheader("set-cookie") or "").partition(";")[0]
    found = re.search(rb'name="csrf" value="(\w+)"', body) or re.search(rb"(x)", b"x")
    assert found is not None
    told = {"content_type": "application/x-www-form-urlencoded", "accept": "application/json", "cookie": cookie}
    refused = shared.ask("POST", "/", b"csrf=" + b"0" * 64 + b"&stop=1", **told)
    assert refused[0].status == 403
    foreign = shared.ask("POST", "/", b"csrf=x&stop=1", origin="https://evil.example", **told)
    assert foreign[0].status == 403


def test_a_long_answer_gets_through_and_one_that_is_too_long_is_told_to_the_script(shared: Site) -> None:
    told = {"content_type": "application/x-www-form-urlencoded", "accept": "application/json"}
    long = b"f0=" + b"%F0%9F%98%80" * forms.MAX_TEXT
    boxes = b"&".join(b"f0.%d=on" % n for n in range(500))
    for body, status, text in (
        (long, 403, "cookie"),
        (boxes, 403, "cookie"),
        (b"f0=" + b"x" * 2**20, 413, "more than 1048576 bytes."),
        (boxes * 3, 400, "There are too many parameters."),
    ):
        response, _, said = shared.ask("POST", "/", body, **told)
        assert response.status == status and text in said["told"]


def test_with_an_external_issuer_only_the_public_part_is_shown(tmp_path: Path) -> None:
    """With a path of its own, all of it is below that."""
    require("clients")
    url = "https://tools.example/box"
    with site(tmp_path, "--auth", "https://login.example", "--public-url", url, "--accept-unsandboxed") as listening:
        page = listening.ask("GET", "/", accept="text/html", host="tools.example")[1].decode()
        assert f"{url}/mcp" in page and "claude.ai" in page
        assert "Sign in" not in page and "csrf" not in page and "/login" not in page
        assert set(re.findall(r'(?:src|href)="(/[a-z]*)', page)) == {"/box"}
        form = {"content_type": "application/x-www-form-urlencoded", "host": "tools.example"}
        assert listening.ask("POST", "/", b"stop=1", **form)[0].status == 403
        assert listening.ask("GET", "/events", host="tools.example")[0].status == 401


# -- a signed-in person's running work


def test_a_person_without_an_app_is_led_to_connect_one_and_the_page_follows(arrive: Any, signed: Signed) -> None:
    require("clients")
    zoe = AppUser(signed, "zoe", "Workbench", is_connected=False)
    page = arrive("zoe")
    is_live(page)
    assert page.locator("h1").inner_text() == "Connect your first app"
    links = [page.get_by_role("link", name=f"Add to {name}").get_attribute("href") for name in ("Cursor", "VS Code")]
    assert [(link or "").partition(":")[0] for link in links] == ["cursor", "vscode"]
    assert page.locator(".columns section:visible").count() == 0
    zoe.approve()
    page.get_by_role("heading", level=1, name="Running for you").wait_for()
    zoe.call("TaskManager", action="list", query="", text="")
    page.locator("#part-calls", has_text="TaskManager").wait_for()
    assert page.locator(".part-tasks").is_hidden()


def test_calls_are_seen_as_they_happen_and_output_as_it_comes_and_stop_stops(arrive: Any, ada: AppUser) -> None:
    require("telemetry")
    page = arrive("ada")
    is_live(page)
    id = ada.run("echo 'one \x1b[31mred\x1b[0m'; read -t 600 < <(sleep 600); echo never")
    page.locator("#part-calls", has_text="BackgroundBash").wait_for()
    output = page.locator(f"#output-{id}")
    page.wait_for_function("id => document.getElementById(id)?.textContent === 'one red\\n'", arg=f"output-{id}")
    row = page.locator(f"#run-{id}")
    assert "running" in row.inner_text()
    confirm(page, f"Stop command {id}")
    told(page, f"Command {id} was stopped.")
    row.get_by_text("stopped").wait_for()
    assert row.get_by_role("button").count() == 0
    assert output.text_content() == "one red\n"
    assert "killed" in ada.call("ReadBgOutput", task_id=id)["content"][0]["text"]
    page.locator("#part-calls", has_text="ReadBgOutput").wait_for()
    newest = page.locator("tbody tr:first-child", has_text="ReadBgOutput")
    assert eventually(lambda: (page.reload(), newest.count())[1])  # a read output is shown for some seconds
    page.get_by_text("in the audit log").click()
    assert newest.is_visible()


def test_tasks_plan_and_callbacks_are_shown_and_a_callback_is_cancelled(arrive: Any, ada: AppUser) -> None:
    ada.call("TaskManager", action="create", query="", text="Write the <i>report</i>")
    ada.call("TaskManager", action="add", query="", text="draw charts")
    ada.call("SetCallback", action="set", message="look at the build", delay_seconds=600)
    ada.call("PlanMode", action="enter", goal="restructure")
    page = arrive("ada")
    tasks = page.locator("#part-tasks")
    assert "Write the <i>report</i>" in tasks.inner_text() and "draw charts" in tasks.inner_text()
    assert "Plan: restructure" in tasks.inner_text()
    page.locator("#part-callbacks", has_text="look at the build").locator("summary").click()
    page.locator("#part-callbacks").get_by_role("button", name="Cancel").click()
    told(page, "The callback was cancelled.")
    page.locator(".part-callbacks").wait_for(state="hidden")
    assert "No callbacks" in ada.call("SetCallback", action="list")["content"][0]["text"]
    ada.call("PlanMode", action="exit")


def test_a_session_is_ended_and_an_app_shut_out(arrive: Any, signed: Signed) -> None:
    eve = AppUser(signed, "eve", "Workbench")
    page = arrive("eve")
    confirm(page, "End this session of Workbench")
    told(page, "The session was ended.")
    page.locator(".part-sessions").wait_for(state="hidden")
    assert eve.ask("ping")[0].status == 404
    confirm(page, "Revoke access of Workbench")
    told(page, "Access was revoked.")
    page.locator(".part-apps").wait_for(state="hidden")
    assert eve.ask("ping")[0].status == 401


def test_a_question_is_answered_and_an_approval_given_or_refused(arrive: Any, ada: AppUser, bob: AppUser) -> None:
    page, theirs = arrive("ada"), bob.browser()
    is_live(page)
    question = page.locator("#part-questions .question")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ada.call, "ask_name")
        question.get_by_label("name").press_sequentially("Ada <i>")
        bob.call("climb")
        id = question.get_by_role("button", name="Send the answer").get_attribute("value")
        for verb in ("accept", "decline"):
            strange = theirs.post("/", {"csrf": _csrf(theirs.get("/").text), verb: id, "f0": "Bob"})
            assert strange.status == 404 and "This question is closed" in strange.text
        question.get_by_role("button", name="Send the answer").click()
        told(page, "Your answer was sent.")
        assert asked.result(PATIENCE)["content"][0]["text"] == "Ada <i>"
        question.wait_for(state="detached")
        for button, result, text in (
            ("Deny", "You refused this call.", "declined"),
            ("Allow once", "You allowed this call.", "<b>\u202ebold"),
        ):
            asked = thread.submit(ada.call, "echo", text="<b>\u202ebold")
            question.get_by_text("<b>\\u202ebold").wait_for()
            question.get_by_role("button", name=button).click()
            told(page, result)
            assert text in asked.result(PATIENCE)["content"][0]["text"]
            question.wait_for(state="detached")


def test_after_a_sign_out_no_tab_is_updated(arrive: Any, ada: AppUser) -> None:
    """However many updates there are."""
    id = ada.run("while sleep 0.05; do echo more; done")
    page = arrive("ada")
    other = page.context.new_page()
    other.goto(page.url)
    is_live(other)
    page.bring_to_front()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="You are signed out").wait_for()
    other.bring_to_front()
    other.get_by_role("heading", name="Tools for your AI apps").wait_for()
    ada.call("KillBgTask", task_id=id)


def test_what_is_hidden_is_not_seen_while_a_style_sheet_is_late(arrive: Any, ada: AppUser) -> None:
    page = arrive(ada.name)
    page.route(re.compile(r"/home\.(css|js)"), lambda route: route.abort())
    page.reload()
    assert page.locator("#live").text_content() == "live" and page.locator("#live").is_hidden()


def test_two_people_see_and_reach_only_their_own(signed: Signed, ada: AppUser, bob: AppUser) -> None:
    running = ada.run("echo of-ada; sleep 600")
    ada.call("SetCallback", action="set", message="remind ada", delay_seconds=600)
    ada.call("TaskManager", action="create", query="", text="a task of ada")
    mine, theirs = ada.browser(), bob.browser()
    shown, foreign = mine.get("/"), theirs.get("/")
    for word in ("of-ada", "remind ada", "a task of ada", "BackgroundBash"):
        assert word in shown.text and word not in foreign.text
    assert "Workbench" in foreign.text and "Workbench" not in shown.text
    ids = {
        "stop": str(running),
        "cancel": "0",
        **{verb: re.findall(rf'name="{verb}" value="([^"]+)"', shown.text)[0] for verb in ("end", "revoke")},
    }
    assert ids["end"] != ada.session
    own, strange = _csrf(shown.text), _csrf(foreign.text)
    for verb, id in ids.items():
        tried = theirs.post("/", {"csrf": strange, verb: id})
        assert tried.status == 404 and "already ended" in tried.text, verb
    wrong = theirs.post("/", {"csrf": own, "stop": str(running)})
    assert wrong.status == 403 and "no longer current" in wrong.text
    crossed = mine.post("/", {"csrf": own, "stop": str(running)}, sec_fetch_site="cross-site")
    assert crossed.status == 403
    assert ada.ask("ping")[0].status == 200
    again = mine.get("/").text
    assert "of-ada" in again and f'name="stop" value="{running}"' in again and "remind ada" in again
    for odd in ("-1", "9" * 30, "../1", "\u0661"):
        assert mine.post("/", {"csrf": own, "stop": odd}).status == 404
    for fields in ({}, {"stop": "1", "cancel": "0"}, {"explode": "1"}):
        assert mine.post("/", {"csrf": own, **fields}).status == 400
    done = mine.post("/", {"csrf": own, "stop": str(running)})
    assert (done.status, "was stopped" in done.text) == (200, True)
    assert mine.post("/", {"csrf": own, "cancel": "0"}).status == 200


def _csrf(page: str) -> str:
    """Return the token of the page's own forms; the sign-out has another."""
    return page.partition('action="/"')[2].split('name="csrf" value="', 1)[1].partition('"')[0]


def test_a_stream_shows_its_persons_news_only_and_streams_are_limited(
    signed: Signed, ada: AppUser, bob: AppUser
) -> None:
    cookies = {one: "; ".join(f"{n}={v}" for n, v in one.browser().cookies.items()) for one in (ada, bob)}
    with contextlib.ExitStack() as stack:

        def follow(one: AppUser, **headers: str) -> Any:
            connection = stack.enter_context(contextlib.closing(signed.site.connect()))
            connection.request("GET", "/events", headers={"cookie": cookies[one], **headers})
            return connection.getresponse()

        assert follow(ada, **{"sec-fetch-site": "cross-site"}).status == 403
        streams = [follow(ada) for _ in range(8)]
        assert [stream.status for stream in streams] == [200] * 8
        assert follow(ada).status == 429
        of_bob = follow(bob)
        assert of_bob.status == 200 and of_bob.getheader("content-type") == "text/event-stream"
        id = ada.run("echo for ada alone")
        bob.call("Bash", command="echo for bob")
        for event in events(streams[0]):
            if "for ada alone" in event.get("data", ""):
                break
        came = ""
        for event in events(of_bob):
            came += event.get("data", "")
            if "<b>Bash</b>" in came:
                break
        assert not re.search(r"\bada\b", came)  # random ids may contain these letters
        assert f"run-{id}" not in came
    assert eventually(lambda: _opens(signed, cookies[ada]))  # who goes makes room


def _opens(signed: Signed, cookie: str) -> bool:
    with contextlib.closing(signed.site.connect()) as connection:
        connection.request("GET", "/events", headers={"cookie": cookie})
        return connection.getresponse().status == 200


def test_hostile_text_is_escaped(arrive: Any, ada: AppUser) -> None:
    page = arrive("ada")
    is_live(page)
    quoted = HOSTILE.replace("'", "'\"'\"'")
    id = ada.run(
        f"printf '%s\\n' '{quoted}'; printf '\\033]0;title\\007\\033[2J'; head -c 1000000 /dev/zero | tr '\\0' A"
    )
    ada.call("TaskManager", action="create", query="", text=HOSTILE)
    ada.ask("tools/call", {"name": HOSTILE, "arguments": {}})
    row = page.locator(f"#run-{id}")
    row.get_by_text("ended with code 0").wait_for()
    page.locator("#part-calls", has_text="<script>").wait_for()
    for _ in range(2):
        text = page.locator("main").inner_text()
        assert "<img src=x" in text and "\u202e" not in text and "\x1b" not in text
        assert page.evaluate("window.bad") is None
        assert page.locator("main img, main script").count() == 0
        assert len(page.locator(f"#output-{id}").text_content()) <= 64 * 1024
        assert page.evaluate(TOO_WIDE) <= 0
        page.reload()


def test_all_of_it_works_without_a_script(arrive: Any, ada: AppUser) -> None:
    id = ada.run("echo quietly; sleep 600")
    page = arrive("ada", java_script_enabled=False)
    assert eventually(lambda: "quietly" in (page.reload(), page.locator(f"#output-{id}").inner_text())[1])
    assert page.get_by_role("button", name="Copy").count() == 0
    confirm(page, f"Stop command {id}")
    page.get_by_text(f"Command {id} was stopped.").wait_for()
    assert page.locator(f"#run-{id}").get_by_text("stopped").count() == 1


@pytest.mark.brief("dark")  # tests/server/auth/test_pages.py has the light
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_and_used_by_everybody(scheme: str, arrive: Any, ada: AppUser, tmp_path: Path) -> None:
    ada.call("SetCallback", action="set", message="m" * 200, delay_seconds=600)
    ada.run("echo " + "x" * 500)
    stranger, page = arrive(color_scheme=scheme), arrive("ada", color_scheme=scheme)
    is_live(page)
    for size, (width, height) in SIZES.items():
        for shown in (stranger, page):
            shown.set_viewport_size({"width": width, "height": height})
            shown.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
            assert shown.evaluate(CONTRAST) == [], size
            assert shown.evaluate(UNNAMED) == [], size
            assert shown.evaluate(TOO_WIDE) <= 0, size
            assert shown.get_by_role("main").count() == 1
            name = "in" if shown is page else "out"
            shown.screenshot(path=tmp_path / f"{name}-{size}-{scheme}.png", full_page=True)
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
