"""Run a worker process that does every job: read pages, texts, PDFs and search results, and scale pictures."""

from collections.abc import Callable
from typing import Any

from toolgate.tools.reading.pdf import reading
from toolgate.tools.reading.search import ddgs_worker, html_engine
from toolgate.tools.reading.web import convert
from toolgate.tools.reading.workers import pictures, worker

# name → the type of its requests, the function that loads its libraries, the function that does it
JOBS: dict[str, tuple[Any, Callable[[], None], Callable[[Any], Any]]] = {
    "page": (convert.RawPage, convert.prepare, convert.read),
    "text": (convert.RawPage, convert.load_encodings, convert.read),
    "search": (html_engine.JobBatch, ddgs_worker.prepare, ddgs_worker.run_jobs),
    "pdf": (convert.RawPage, reading.prepare, reading.read_pdf),
    "picture": (pictures.RawPicture, pictures.prepare, pictures.fit_picture),
}


def main() -> None:
    worker.serve(JOBS)


if __name__ == "__main__":
    main()
