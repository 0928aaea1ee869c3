"""Names of mounted parts: valid, unique, and the same in any order of mounts."""

import hashlib
import itertools
import random
import re

import pytest

from toolgate.server.features.mounts.names import MountNames, OriginalName, choose_names

SERVED = re.compile("[A-Za-z0-9_-]{1,64}")
PIECES = (
    "search",
    "Search",
    "x__y",
    "x.y",
    "x/y",
    "é",
    "工具",
    "😀",
    " ",
    "",
    "a" * 64,
    "b" * 128,
    "_",
    "-",
    "Bash",
    "\0",
)
TAKEN = ("Bash", "ReadDocs", "files__read")


def digits(mount: str, name: str, count: int = 6) -> str:
    return hashlib.sha256(f"{mount}\0{name}".encode()).hexdigest()[:count]


def choose(*mounts: MountNames, taken: tuple[str, ...] = TAKEN) -> dict[OriginalName, str]:
    """Return the chosen names, which are the same in any order of mounts and names, valid and unique."""
    chosen = dict(choose_names(mounts, taken))
    for order in itertools.islice(itertools.permutations(mounts), 24):
        turned = [MountNames(each.mount, each.prefix, each.names[::-1]) for each in order]
        assert choose_names(turned, taken) == chosen
    lowered = [name.lower() for name in (*chosen.values(), *taken)]
    assert len(set(lowered)) == len(lowered), "two names are the same but for their case"
    assert all(SERVED.fullmatch(name) for name in chosen.values())
    return chosen


def test_a_name_has_the_prefix_of_its_mount() -> None:
    assert choose(MountNames("web", "web__", ("search", "x__y")), MountNames("files", "", ("read",))) == {
        ("web", "search"): "web__search",
        ("web", "x__y"): "web__x__y",
        ("files", "read"): "read",
    }


def test_other_characters_become_underscores() -> None:
    assert choose(MountNames("a", "a__", ("x.y", "x/z", "é 😀"))) == {
        ("a", "x.y"): "a__x_y",
        ("a", "x/z"): "a__x_z",
        ("a", "é 😀"): "a_____",
    }


@pytest.mark.parametrize("pair", [("x.y", "x/y"), ("read", "Read"), ("é", "ü")])
def test_all_that_clash_get_a_hash(pair: tuple[str, str]) -> None:
    chosen = choose(MountNames("a", "a__", (*pair, "other")))
    assert chosen["a", "other"] == "a__other"
    for name in pair:
        assert chosen["a", name] == f"a__{re.sub('[^a-zA-Z]', '_', name)}_{digits('a', name)}"


def test_two_mounts_without_a_prefix_may_clash() -> None:
    chosen = choose(MountNames("a", "", ("search",)), MountNames("b", "", ("search",)))
    assert chosen == {(mount, "search"): f"search_{digits(mount, 'search')}" for mount in "ab"}


def test_what_others_have_stays_theirs() -> None:
    chosen = choose(MountNames("a", "", ("Bash", "bash", "READDOCS", "Bashful")))
    assert chosen["a", "Bashful"] == "Bashful"
    assert chosen["a", "READDOCS"] == f"READDOCS_{digits('a', 'READDOCS')}"
    assert chosen["a", "bash"] == f"bash_{digits('a', 'bash')}"


def test_a_long_name_is_cut_and_gets_a_hash() -> None:
    fits, long, longer = "a" * 61, "a" * 62, "a" * 128
    assert choose(MountNames("m", "m__", (fits, long, longer))) == {
        ("m", fits): f"m__{fits}",
        ("m", long): f"m__{'a' * 54}_{digits('m', long)}",
        ("m", longer): f"m__{'a' * 54}_{digits('m', longer)}",
    }


def test_a_tool_that_is_called_as_another_with_its_hash_gives_way() -> None:
    hashed = f"search_{digits('a', 'search')}"
    chosen = choose(MountNames("a", "", ("search",)), MountNames("b", "", ("search", hashed)))
    assert chosen["a", "search"] == hashed
    assert chosen["b", hashed] == f"{hashed}_{digits('b', hashed)}"


def test_a_hash_that_others_have_gets_longer() -> None:
    held = f"Bash_{digits('a', 'Bash')}"
    assert choose(MountNames("a", "", ("Bash",)), taken=("Bash", held)) == {
        ("a", "Bash"): f"Bash_{digits('a', 'Bash', 12)}"
    }


def test_an_empty_name_and_one_listed_twice_have_one_name() -> None:
    assert choose(MountNames("a", "", ("", ""))) == {("a", ""): f"_{digits('a', '')}"}


@pytest.mark.parametrize("seed", range(40))
def test_names_of_any_kind_are_valid_and_do_not_depend_on_the_order(seed: int) -> None:
    rng = random.Random(seed)
    mounts = [
        MountNames(mount, rng.choice((f"{mount}__", "", "same_")), [_make_name(rng) for _ in range(rng.randint(0, 12))])
        for mount in rng.sample(("a", "b", "files", "my-server", "a-b"), rng.randint(1, 4))
    ]
    chosen = choose(*mounts)
    assert chosen.keys() == {(each.mount, name) for each in mounts for name in each.names}
    for (mount, name), served in chosen.items():
        prefix = next(each.prefix for each in mounts if each.mount == mount)
        plain = re.sub("[^A-Za-z0-9_-]", "_", prefix + name)
        assert served == plain or re.fullmatch("_[0-9a-f]{6,54}", served.removeprefix(plain[: served.rindex("_")]))


def test_ten_thousand_names_are_chosen_at_once() -> None:
    mounts = [MountNames(f"m{at}", "", [f"tool-{number}" for number in range(1_000)]) for at in range(10)]
    assert len(set(choose_names(mounts).values())) == 10_000


def _make_name(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 3)))[: rng.choice((8, 60, 128))]
