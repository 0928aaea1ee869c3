"""Choose names of mounts from those of other clients: `My Server` becomes `my-server`."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

MAX_NAME = 16
NO_NAME = "server"


def choose_mount_names(names: Sequence[str]) -> list[str]:
    """Return a valid name for each; where two are the same, the later ones get a number."""
    chosen: list[str] = []
    for name in names:
        chosen.append(next(each for each in _list_candidates(_clean_name(name)) if each not in chosen))
    return chosen


def _clean_name(name: str) -> str:
    """Return a valid name: small letters, digits and "-", of what stands behind the last "/"."""
    plain = unicodedata.normalize("NFKD", name.rstrip("/").rpartition("/")[2]).encode("ascii", "ignore").decode()
    text = re.sub("[^a-z0-9]+", "-", plain.lower()).strip("-")
    if text[:1].isdigit():
        text = f"{NO_NAME}-{text}"
    return text[:MAX_NAME].rstrip("-") or NO_NAME


def _list_candidates(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        ending = f"-{number}"
        yield name[: MAX_NAME - len(ending)].rstrip("-") + ending
        number += 1
