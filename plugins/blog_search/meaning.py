"""Rank texts by meaning, with embeddings from Ollama, if it runs and has the model.

OLLAMA_HOST is its address, as for Ollama itself. A text is embedded once: its vector stays in memory and in an .npy
file in the user's cache directory, which is read without pickle. If the time runs out, the next search continues.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import httpx

MODEL = "nomic-embed-text"
AS_QUERY, AS_TEXT = "search_query: ", "search_document: "  # what the model was trained to tell apart
PORT = 11434
CONNECT = 1.0  # seconds: it is near, or not there
ANSWER = 5.0  # seconds for one request; a model that is still being loaded is asked again later
TIME = 20.0  # seconds for all that one search embeds: a call is held for 45
QUIET = 30.0  # seconds in which one that did not answer is not asked again
BATCH = 16  # texts in one request
SIZE = 2**20  # bytes of an answer: a batch of 16 vectors of 768 numbers takes a quarter of it
MAX_FILE = 2**27  # bytes of the cache: what the largest blog could need


class Embeddings(msgspec.Struct):
    """What we read of the answer of `POST /api/embed`."""

    embeddings: list[list[float]]


class Silent(Exception):
    """Ollama is not there, has no such model, or answered with something else."""


class Meaning:
    """The vectors of one folder's texts."""

    def __init__(self, folder: Path) -> None:
        name = hashlib.sha256(f"{MODEL}\n{folder}".encode(errors="surrogateescape")).hexdigest()[:32]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = cache / "toolgate" / "blog-search" / f"{name}.npy"
        self._kept: dict[bytes, Any] | None = None  # key of a text → its vector, of length 1
        self._quiet_until = 0.0

    def scores(self, query: str, texts: Sequence[str]) -> list[float] | None:
        """The cosine similarity of each text; None where words must do."""
        if time.monotonic() < self._quiet_until:
            return None
        try:
            import httpx  # start-up
            import numpy  # comes with scikit-learn
        except ImportError:
            return None
        timeout = httpx.Timeout(ANSWER, connect=CONNECT)
        try:
            with httpx.Client(timeout=timeout, trust_env=False) as client:  # a proxy has no business with it
                asked = _embedded(client, [AS_QUERY + query])[0]
                vectors = self._vectors(client, texts, len(asked))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, Silent):
            self._quiet_until = time.monotonic() + QUIET
            return None
        return None if vectors is None else [max(0.0, float(score)) for score in numpy.stack(vectors) @ asked]

    def _vectors(self, client: "httpx.Client", texts: Sequence[str], length: int) -> list[Any] | None:
        """A vector for each text; None when time ran out before all were there."""
        keys = [hashlib.sha256(text.encode()).hexdigest()[:32].encode() for text in texts]
        before = self._kept if self._kept is not None else _load(self._file)
        kept = {key: before[key] for key in keys if key in before and len(before[key]) == length}
        missing = [(key, text) for key, text in dict(zip(keys, texts, strict=True)).items() if key not in kept]
        until = time.monotonic() + TIME
        try:
            for first in range(0, len(missing), BATCH):
                if time.monotonic() > until:
                    return None
                batch = missing[first : first + BATCH]
                found = _embedded(client, [AS_TEXT + text for _, text in batch])
                kept.update((key, vector) for (key, _), vector in zip(batch, found, strict=True))
        finally:
            self._kept = kept
            if kept.keys() != before.keys():
                _save(self._file, kept)
        return [kept[key] for key in keys]


def _embedded(client: "httpx.Client", texts: list[str]) -> Any:
    """A matrix of one vector of length 1 a text. Raises Silent, httpx.HTTPError, ValueError."""
    import numpy

    until = time.monotonic() + ANSWER
    body = bytearray()
    with client.stream("POST", f"{_address()}/api/embed", json={"model": MODEL, "input": texts}) as response:
        if response.status_code != 200:
            raise Silent
        for part in response.iter_bytes():
            body += part
            if len(body) > SIZE or time.monotonic() > until:
                raise Silent
    matrix = numpy.array(msgspec.json.decode(body, type=Embeddings).embeddings, dtype="float32")
    lengths = numpy.linalg.norm(matrix, axis=-1, keepdims=True)
    if matrix.ndim != 2 or len(matrix) != len(texts) or not numpy.isfinite(lengths).all() or not lengths.all():
        raise Silent
    return matrix / lengths


def _address() -> str:
    """OLLAMA_HOST as a URL: it may lack the scheme and the port, and 0.0.0.0 means this machine."""
    import httpx

    told = os.environ.get("OLLAMA_HOST") or "127.0.0.1"
    url = httpx.URL(told if "://" in told else f"http://{told}")
    port = url.port or (None if "://" in told else PORT)
    return str(url.copy_with(host="127.0.0.1" if url.host == "0.0.0.0" else url.host, port=port)).rstrip("/")  # noqa: S104


def _load(file: Path) -> dict[bytes, Any]:
    """What was kept; nothing where the file is not there or not what we wrote."""
    import numpy

    try:
        if file.stat().st_size > MAX_FILE:
            return {}
        table = numpy.load(file, allow_pickle=False)  # a pickle would run what it holds
        keys, vectors = table["key"].tolist(), table["vector"].astype("float32")
        if vectors.ndim != 2 or not numpy.isfinite(vectors).all():
            return {}
        return dict(zip(keys, vectors, strict=True))
    except (OSError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError, MemoryError):
        return {}


def _save(file: Path, kept: dict[bytes, Any]) -> None:
    """Whole or not at all; a cache that can't be written is no fault."""
    import numpy

    with contextlib.suppress(OSError, ValueError):
        length = len(next(iter(kept.values()), ()))
        table = numpy.array(list(kept.items()), dtype=[("key", "S32"), ("vector", "<f4", (length,))])
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f"{file.stem}.{os.getpid()}")
        with draft.open("wb") as opened:
            numpy.save(opened, table, allow_pickle=False)
        draft.replace(file)
