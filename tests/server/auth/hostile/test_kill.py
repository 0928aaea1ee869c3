"""Kill the server (SIGKILL) during token exchanges: nothing is lost or doubled."""

import http.client
import json
import threading
from pathlib import Path

from tests.clients.raw_http_client import Site
from tests.server.auth.hostile.target import BACK, Target, refused, target_site
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import PageAnswer


def while_it_dies(target: Target, work: list[tuple[str, dict[str, str]]]) -> list[PageAnswer | None]:
    """Return the answers to these forms, sent at once to a server that is killed after the first answer."""
    got: list[PageAnswer | None] = [None] * len(work)
    first = threading.Event()

    def run(number: int) -> None:
        try:
            got[number] = target.form("/token", work[number][1])
        except (OSError, http.client.HTTPException):  # it died first
            return
        finally:
            first.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    assert first.wait(60)
    target.signed.site.kill()
    for thread in threads:
        thread.join(20)
    return got


def test_after_kill_9_amid_exchanges_clients_are_registered_and_no_grant_is_lost_or_doubled(tmp_path: Path) -> None:
    """TK-03, TK-04: an answered client can go on; one whose answer was lost may retry, and at most one succeeds."""
    with target_site(tmp_path / "killed") as target:
        port = target.port
        held = [target.granted() for _ in range(6)]
        codes = []
        for _ in range(6):
            verifier = target.verifier()
            codes.append((target.code(verifier), verifier))
        forms = [{"grant_type": "refresh_token", "refresh_token": each["refresh_token"]} for each in held]
        forms += [
            {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": BACK}
            for code, verifier in codes
        ]
        answers = while_it_dies(target, [("", {**form, "client_id": target.client}) for form in forms])
        again = Site(tmp_path / "killed", "--auth", "oauth", "-v", "--port", str(port))
        try:
            target.signed = Signed(again)
            for old, answer in zip(held, answers[:6], strict=True):
                if answer is not None:
                    assert answer.status == 200
                    following = json.loads(answer.body)["refresh_token"]
                    assert target.refresh(following).status == 200  # it was written before it was told
                else:
                    assert target.refresh(old["refresh_token"]).status == 200  # an answer that was lost costs nobody
            for (code, verifier), answer in zip(codes, answers[6:], strict=True):
                second = target.exchange(code, verifier)
                if answer is not None:
                    assert answer.status == 200
                    refused(second, "invalid_grant")
                elif second.status != 200:  # it was redeemed, and the answer lost: not once more
                    refused(second, "invalid_grant")
            assert target.works(target.granted()["access_token"])  # the client, ada and her session are there still
            target.assert_no_secret_is_written()
            assert again.stop() == 0
        finally:
            again.kill()
