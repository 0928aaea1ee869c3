"""Who was lately behind a browser's session: until when it is known, of how many, and that the database has the last
word."""

from toolgate.server.auth.login.accounts import Person
from toolgate.transports.web.page_context import ANONYMOUS, Visitor
from toolgate.transports.web.recent_visitors import MAX_VISITORS, REMEMBERED, RecentVisitors

ADA = Visitor(Person("http://127.0.0.1:1", "ada", "Ada"), "key")


def test_a_visitor_is_known_for_a_while_after_the_database_knew_them() -> None:
    now = [0.0]
    recent = RecentVisitors(lambda: now[0])
    recent.note("secret", ADA)
    now[0] = REMEMBERED - 1
    assert (recent.find("secret"), recent.find("other"), recent.find("")) == (ADA, None, None)
    now[0] = REMEMBERED
    assert recent.find("secret") is None
    recent.note("secret", ADA)
    assert recent.find("secret") == ADA


def test_a_session_that_the_database_does_not_have_is_forgotten() -> None:
    recent = RecentVisitors()
    recent.note("secret", ADA)
    recent.note("secret", ANONYMOUS)
    assert recent.find("secret") is None


def test_the_visitor_not_seen_for_longest_is_forgotten_first() -> None:
    recent = RecentVisitors()
    for number in range(MAX_VISITORS):
        recent.note(str(number), ADA)
    recent.note("0", ADA)
    recent.note("one more", ADA)
    assert [recent.find(secret) for secret in ("0", "1", "2", "one more")] == [ADA, None, ADA, ADA]
