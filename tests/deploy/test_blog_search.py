"""The blog search example through a client: words by scikit-learn, meaning by a fake Ollama."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.clients.raw_client import Refusal, Server
from tests.deploy.fake_service import Answer, FakeService, fake_service
from tests.servers import forked_command

Start = Callable[..., Server]
POSTS = {
    "cats.md": "# Cats\n\nA cat sleeps for most of the day.\n",
    "2024/bread.md": "# Bread\n\nFlour, water, salt and patience make a loaf. Brot, Brötchen, große Öfen 🍞.\n",
    "letters.md": "# Letters\n\nThe postman brings fewer of them each year.\n",
}
SAME = {"feline": "cat", "naps": "sleeps", "baking": "loaf"}  # the fake model's synonyms


@pytest.fixture
def examples(examples: Start) -> Iterator[Start]:
    """Load the plugin, whose import takes a second, into the forked command."""
    with forked_command.knowing("sklearn.feature_extraction.text", "sklearn.metrics.pairwise"):
        yield examples


def write(folder: Path, posts: Mapping[str, str]) -> Path:
    for source, text in posts.items():
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).write_text(text)
    return folder


def search(server: Server, query: str, **arguments: Any) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = json.loads(server.text("search_blog", {"query": query, **arguments}))
    return hits


def best(server: Server, query: str) -> str:
    source: str = search(server, query)[0]["source"]
    return source


def vector(text: str) -> list[float]:
    """Return a vector with one dimension per word, shared by synonyms."""
    places = [0.0] * 64
    for word in text.lower().replace(".", " ").split():
        places[sum(SAME.get(word, word).encode()) % 64] += 1.0
    return places


def embed(service: FakeService, path: str, body: bytes) -> Answer:
    asked = json.loads(body)
    assert (path, asked["model"]) == ("/api/embed", "nomic-embed-text")
    answer = {"model": asked["model"], "embeddings": [vector(text.partition(": ")[2]) for text in asked["input"]]}
    return 200, {"content-type": "application/json"}, json.dumps(answer).encode()


def embedded(service: FakeService) -> list[str]:
    """Return all embedded texts so far, without those of queries."""
    texts = [text for _, body in service.asked for text in json.loads(body)["input"]]
    return [text for text in texts if not text.startswith("search_query: ")]


@pytest.mark.brief("http")
def test_a_client_of_five_steps(everywhere: Start, tmp_path: Path) -> None:
    server = everywhere(env={"BLOG_SEARCH_DIR": str(write(tmp_path / "blog", POSTS))}, handshake=False)
    server.shake_hands()
    assert {"search_blog", "read_chunk"} <= {tool["name"] for tool in server.request("tools/list")["tools"]}
    (block,) = server.call("search_blog", {"query": "große Öfen"})["content"]
    assert "Öfen 🍞" in block["text"]  # as it is, not escaped
    hit = json.loads(block["text"])[0]
    assert set(hit) == {"source", "chunk_index", "score", "preview"}
    assert (hit["source"], hit["chunk_index"], hit["score"] == round(hit["score"], 4)) == ("2024/bread.md", 0, True)
    text = server.text("read_chunk", {"source": hit["source"], "chunk_index": hit["chunk_index"]})
    assert text == POSTS["2024/bread.md"].strip() == hit["preview"]
    with pytest.raises(Refusal) as caught:
        server.request("blog/nothing")
    assert caught.value.code == -32601


def test_words_are_found_in_other_forms_and_top_k_bounds_the_hits(examples: Start, tmp_path: Path) -> None:
    server = examples(env={"BLOG_SEARCH_DIR": str(write(tmp_path / "blog", POSTS))})
    assert best(server, "postmen") == "letters.md"
    assert best(server, "GROSSE OFEN") == "2024/bread.md"
    assert len(search(server, "the cat makes letters of bread", top_k=2)) == 2
    assert search(server, "zzzzqqqq") == []
    for wrong in ({"query": "x", "top_k": 0}, {"query": "x", "top_k": 21}):
        assert "top_k" in server.error("search_blog", wrong)
    for empty in ("", " \n\t"):
        assert "the query is empty" in server.error("search_blog", {"query": empty})
    assert "longer than" in server.error("search_blog", {"query": "x" * 2_001})


def test_the_folder_is_the_current_one_unless_it_is_named(examples: Start, tmp_path: Path) -> None:
    write(tmp_path / "work", POSTS)
    assert best(examples(), "cats") == "cats.md"


def test_a_folder_that_is_empty_gives_nothing_and_one_that_is_missing_is_named(examples: Start, tmp_path: Path) -> None:
    (tmp_path / "blog").mkdir()
    server = examples(env={"BLOG_SEARCH_DIR": str(tmp_path / "blog")})
    assert search(server, "cats") == []
    (tmp_path / "blog" / "signs.md").write_text("!!! ???")
    assert search(server, "cats") == []
    (tmp_path / "blog").rename(tmp_path / "moved")
    assert "BLOG_SEARCH_DIR" in server.error("search_blog", {"query": "cats"})


@pytest.mark.parametrize("has_ollama", [False, True])
def test_what_is_added_changed_and_removed_is_seen_at_the_next_search(
    examples: Start, tmp_path: Path, has_ollama: bool
) -> None:
    blog = write(tmp_path / "blog", POSTS)
    with fake_service(embed) as service:
        ollama = {"OLLAMA_HOST": service.url} if has_ollama else {}
        server = examples(env={"BLOG_SEARCH_DIR": str(blog), **ollama})
        assert best(server, "cat") == "cats.md"
        write(blog, {"new.md": "# Ships\n\nA ferry crosses the bay."})
        assert best(server, "ferry crosses") == "new.md"
        write(blog, {"new.md": "# Trains\n\nThe locomotive whistles."})
        assert search(server, "locomotive whistles")[0]["preview"] == "# Trains\n\nThe locomotive whistles."
        (blog / "new.md").unlink()
        assert "new.md" not in {hit["source"] for hit in search(server, "locomotive whistles", top_k=20)}
        assert server.error("read_chunk", {"source": "new.md", "chunk_index": 0}) == "Not found: new.md#chunk0"


def test_nothing_but_markdown_inside_the_folder_is_read(examples: Start, tmp_path: Path) -> None:
    blog = write(tmp_path / "blog", {**POSTS, "notes.txt": "secret", ".hidden.md": "secret", ".git/x.md": "secret"})
    outside = write(tmp_path / "outside", {"out.md": "secret"})
    (blog / "link.md").symlink_to(outside / "out.md")
    (blog / "folder").symlink_to(outside)
    (blog / "loop").symlink_to(blog)
    (blog / "large.md").write_text("secret " * 200_000)
    os.mkfifo(blog / "pipe.md")
    server = examples(env={"BLOG_SEARCH_DIR": str(blog)})
    hits = search(server, "secret cat loaf postman", top_k=20)
    assert {hit["source"] for hit in hits} == set(POSTS)
    leading_out = ("../outside/out.md", str(outside / "out.md"), "link.md", "folder/out.md", "./cats.md", "")
    for source in leading_out:
        assert server.error("read_chunk", {"source": source, "chunk_index": 0}) == f"Not found: {source}#chunk0"
    for index in (-1, 1, 10**30):
        assert "Not found" in server.error("read_chunk", {"source": "cats.md", "chunk_index": index})


def test_a_folder_that_is_a_link_itself_is_searched(examples: Start, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write(tmp_path / "blog", POSTS))
    assert best(examples(env={"BLOG_SEARCH_DIR": str(tmp_path / "link")}), "cats") == "cats.md"


def test_a_long_post_comes_in_chunks_that_leave_nothing_out(examples: Start, tmp_path: Path) -> None:
    sections = [f"## Part {n}\n\n" + " ".join(f"word{n}x{m}" for m in range(60)) for n in range(12)]
    code = "```sh\n# no heading\n\necho done\n```"
    endless = "🍞é" * 2_000  # one word, longer than any chunk
    text = "\n\n".join(["\ufeff# Title", *sections, code, endless])
    server = examples(env={"BLOG_SEARCH_DIR": str(write(tmp_path / "blog", {"long.md": text}))})
    chunks: list[str] = []
    while True:
        result = server.call("read_chunk", {"source": "long.md", "chunk_index": len(chunks)})
        if result["isError"]:
            break
        chunks.append(result["content"][0]["text"])
    assert all(0 < len(chunk) <= 1_200 for chunk in chunks)
    assert "".join("".join(chunks).split()) == "".join(text.removeprefix("\ufeff").split())
    assert any(code in chunk for chunk in chunks)
    assert chunks[0].startswith("# Title\n\n## Part 0")  # what is short goes along with what follows
    assert sum(chunk.startswith("## Part") for chunk in chunks) >= 10
    (hit,) = search(server, "word3x7", top_k=1)
    assert hit["preview"] == chunks[hit["chunk_index"]][:160] + "..." and "word3x7" in chunks[hit["chunk_index"]]


def test_without_scikit_learn_the_tool_says_what_to_install(examples: Start, tmp_path: Path) -> None:
    write(tmp_path / "no", {"sklearn/__init__.py": "raise ImportError"})
    blog = write(tmp_path / "blog", POSTS)
    server = examples(env={"BLOG_SEARCH_DIR": str(blog), "PYTHONPATH": str(tmp_path / "no")})
    assert "pip install scikit-learn" in server.error("search_blog", {"query": "cats"})
    assert server.text("read_chunk", {"source": "cats.md", "chunk_index": 0}).startswith("# Cats")


def test_with_ollama_meaning_counts_and_each_text_is_embedded_once(examples: Start, tmp_path: Path) -> None:
    blog = write(tmp_path / "blog", POSTS)
    with fake_service(embed) as service:
        env = {"BLOG_SEARCH_DIR": str(blog), "OLLAMA_HOST": service.url.removeprefix("http://")}
        server = examples(env=env)
        assert best(server, "feline naps") == "cats.md"  # no word of it is there
        assert sorted(embedded(service)) == sorted(f"search_document: {text.strip()}" for text in POSTS.values())
        service.asked.clear()
        assert best(server, "baking") == "2024/bread.md"
        assert embedded(service) == []
        write(blog, {"cats.md": "# Cats\n\nA cat that changed."})
        search(server, "cat")
        assert embedded(service) == ["search_document: # Cats\n\nA cat that changed."]
        assert server.close() == 0

        service.asked.clear()
        assert best(examples(env=env), "feline") == "cats.md"
        assert embedded(service) == []  # another process finds them in the cache
        assert {path.name for path in blog.rglob("*")} == {"2024", "bread.md", "cats.md", "letters.md"}
        (file,) = (tmp_path / "home" / ".cache" / "toolgate" / "blog-search").iterdir()
        assert len(numpy.load(file, allow_pickle=False)) == 3
        assert file.parent.stat().st_mode & 0o077 == 0


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.mark.brief("a pickle", "cut off")
@pytest.mark.parametrize("kind", ["a pickle", "a shorter vector", "no numbers", "cut off", "another table"])
def test_a_foreign_cache_is_rebuilt_and_never_unpickled(examples: Start, tmp_path: Path, kind: str) -> None:
    blog = write(tmp_path / "blog", POSTS)
    with fake_service(embed) as service:
        env = {"BLOG_SEARCH_DIR": str(blog), "OLLAMA_HOST": service.url}
        server = examples(env=env)
        search(server, "cat")
        assert server.close() == 0
        (file,) = (tmp_path / "home" / ".cache" / "toolgate" / "blog-search").iterdir()
        table = numpy.load(file, allow_pickle=False)
        if kind == "a pickle":
            numpy.save(file, numpy.array([Trap(tmp_path / "sprung")], dtype=object), allow_pickle=True)
        elif kind == "a shorter vector":
            pairs = [(key, [1.0, 0.0]) for key in table["key"]]
            numpy.save(file, numpy.array(pairs, dtype=[("key", "S32"), ("vector", "<f4", (2,))]))
        elif kind == "no numbers":
            table["vector"][:] = numpy.nan
            numpy.save(file, table)
        elif kind == "cut off":
            file.write_bytes(file.read_bytes()[:-100])
        else:
            numpy.save(file, numpy.zeros(3))
        service.asked.clear()
        assert best(examples(env=env), "feline") == "cats.md"
        assert len(embedded(service)) == 3
        assert not (tmp_path / "sprung").exists()


def numbers(*vectors: list[float]) -> Answer:
    return 200, {}, json.dumps({"embeddings": vectors}).encode()


FAILURES: dict[str, Answer] = {
    "no such model": (404, {}, b'{"error": "model not found"}'),
    "no json": (200, {}, b"<html>"),
    "no vectors": (200, {}, b'{"embeddings": [["a"]]}'),
    "none at all": numbers(),
    "too many": numbers([1.0, 0.0], [0.0, 1.0]),
    "nothing but zeros": numbers([0.0, 0.0]),
    "too large a number": numbers([1e300, 1.0]),
    "too much": (200, {}, b" " * 2**21 + b'{"embeddings": [[1.0]]}'),
    "a redirect": (302, {"location": "/elsewhere"}, b""),
}


IN_SHORT = ("no such model", "too large a number")
MORE = (pytest.param(each, marks=pytest.mark.soak) for each in FAILURES if each not in IN_SHORT)


@pytest.mark.parametrize("failure", [*IN_SHORT, *MORE])
def test_search_works_without_an_ollama_that_fails(examples: Start, tmp_path: Path, failure: str) -> None:
    with fake_service(lambda *_: FAILURES[failure]) as service:
        blog = write(tmp_path / "blog", POSTS)
        server = examples(env={"BLOG_SEARCH_DIR": str(blog), "OLLAMA_HOST": service.url})
        assert best(server, "postman") == "letters.md"
        assert best(server, "bread") == "2024/bread.md"
        assert len(service.asked) == 1  # it is left alone for a while


def test_an_ollama_that_says_nothing_is_given_up(examples: Start, tmp_path: Path) -> None:
    def slow(service: FakeService, path: str, body: bytes) -> Answer:
        service.over.wait()
        return embed(service, path, body)

    with fake_service(slow) as service:
        blog = write(tmp_path / "blog", POSTS)
        server = examples(env={"BLOG_SEARCH_DIR": str(blog), "OLLAMA_HOST": service.url})
        begun = time.monotonic()
        assert best(server, "postman") == "letters.md"
        assert time.monotonic() - begun < 15
