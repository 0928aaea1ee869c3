"""A server that rejects new tokens means it after a while."""

from toolgate.server.features.mounts.sign_in.rejections import Rejections


def test_a_rejection_counts_once_it_has_lasted() -> None:
    clock = [0.0]
    rejections = Rejections(lambda: clock[0], lasts=30.0)
    assert not rejections.note("ada", "first") and rejections.is_recent("ada", "first")
    assert not rejections.is_recent("ada", "other") and not rejections.is_recent("bob", "first")
    clock[0] = 29.9
    assert not rejections.note("ada", "second") and rejections.is_recent("ada", "second")
    clock[0] = 30.0
    assert not rejections.is_recent("ada", "second") and rejections.note("ada", "third")
    rejections.forget("ada")
    assert not rejections.note("ada", "fourth")


def test_the_first_of_too_many_people_is_forgotten() -> None:
    rejections = Rejections(lambda: 0.0, lasts=0.0, most=2)
    for name in ("ada", "bob", "cid"):
        assert not rejections.note(name, "token")
    assert rejections.note("cid", "token") and not rejections.note("ada", "token")
