"""Two tools that search a folder of markdown and read its files: a plugin that is a package of four files.

BLOG_SEARCH_DIR names the folder; the default is the server's current directory. Every caller can read all of its
markdown. If Ollama runs with `nomic-embed-text`, results are ranked by meaning (meaning.py), else by words (words.py).
"""

import functools
import json
import os
import threading
from pathlib import Path
from typing import Annotated

import msgspec

from toolgate.tools import ToolError, tool

from .meaning import Meaning
from .posts import Posts
from .words import Words

MAX_QUERY = 2_000  # characters: a question, not a document
PREVIEW = 160  # characters of a chunk in a list of hits
SHOWN = 500  # characters of a source told back


class Blog:
    """One folder, as it was at the last search."""

    def __init__(self, folder: Path) -> None:
        self.posts = Posts(folder)
        self.meaning = Meaning(folder)
        self.words: Words | None = None
        self.lock = threading.Lock()  # plain functions run in threads, several at once

    def refresh(self) -> None:
        """See what was added, changed or removed meanwhile."""
        folder = self.posts.folder
        if not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise ToolError("the blog's folder is not there or can't be read; BLOG_SEARCH_DIR names it")
        if self.posts.refresh():
            self.words = None

    def scores(self, query: str) -> list[float]:
        """How near each chunk is to the query, from 0 to 1."""
        texts = [chunk.text for chunk in self.posts.chunks]
        near = self.meaning.scores(query, texts)
        if near is not None:
            return near
        self.words = self.words or Words(texts)
        return self.words.scores(query)


@functools.cache
def _blog(folder: Path) -> Blog:
    return Blog(folder)


def _here() -> Blog:
    return _blog(Path(os.environ.get("BLOG_SEARCH_DIR") or os.curdir).resolve())


@tool(title="Search the blog", read_only=True, open_world=False)
def search_blog(
    query: Annotated[str, "what to look for, in your own words"],
    top_k: Annotated[int, msgspec.Meta(ge=1, le=20), "how many hits"] = 5,
) -> str:
    """Search the blog's posts. Returns a JSON list of hits, best first: source, chunk_index, score, preview.

    Use read_chunk with a hit's source and chunk_index to read it in full.
    """
    query = query.strip()
    if not query:
        raise ToolError("the query is empty: say what to look for")
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query is longer than {MAX_QUERY} characters: say it shorter")
    blog = _here()
    with blog.lock:
        blog.refresh()
        chunks = blog.posts.chunks
        ranked = sorted(zip(blog.scores(query), chunks, strict=True), key=lambda hit: -hit[0]) if chunks else []
    hits = [
        {
            "source": chunk.source,
            "chunk_index": chunk.index,
            "score": round(score, 4),
            "preview": chunk.text if len(chunk.text) <= PREVIEW else f"{chunk.text[:PREVIEW]}...",
        }
        for score, chunk in ranked[:top_k]
        if score > 0
    ]
    return json.dumps(hits, ensure_ascii=False)


@tool(title="Read a chunk of the blog", read_only=True, open_world=False)
def read_chunk(
    source: Annotated[str, "a hit's source"],
    chunk_index: Annotated[int, "a hit's chunk_index"],
) -> str:
    """Return the whole text of one chunk that search_blog found."""
    blog = _here()
    with blog.lock:
        blog.refresh()
        for chunk in blog.posts.chunks:  # looked up, never opened: no source leads out of the folder
            if (chunk.source, chunk.index) == (source, chunk_index):
                return chunk.text
    raise ToolError(f"Not found: {source[:SHOWN]}#chunk{chunk_index}")
