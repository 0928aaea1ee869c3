"""Who watches a principal is told of each change, until they stop."""

from toolgate.server.base.watchers import Watchers


def test_a_watcher_is_told_until_it_stops() -> None:
    watchers, told = Watchers(), list[str]()
    stops = [watchers.watch("ada", lambda name=name: told.append(name)) for name in ("a", "b")]
    other = watchers.watch("bob", lambda: told.append("bob"))
    watchers.notify("ada")
    assert sorted(told) == ["a", "b"]
    stops[0]()
    stops[0]()  # a page that closes twice
    watchers.notify("ada")
    assert sorted(told) == ["a", "b", "b"]
    stops[1]()
    watchers.notify("ada")
    assert sorted(told) == ["a", "b", "b"] and watchers.by_principal
    other()
    assert not watchers.by_principal


def test_a_watcher_may_stop_while_it_is_told() -> None:
    watchers, told = Watchers(), list[str]()

    def once() -> None:
        told.append("once")
        stop()

    stop = watchers.watch("ada", once)
    watchers.notify("ada")
    watchers.notify("ada")
    assert told == ["once"] and not watchers.by_principal
