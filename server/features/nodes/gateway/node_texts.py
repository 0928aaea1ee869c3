"""Clean the texts of a node that a model, a person or a log reads: no control characters, no invisible ones.

An honest node has cleaned them before, but a node may be compromised. Names of files stay as they are: calls use them.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.features.nodes.messages import TaskEnded
from toolgate.server.features.nodes.pages.methods import JobOutcome
from toolgate.tools.api.text.cleaning import clean_text
from toolgate.tools.reading.pages.page_reader import PageDocument
from toolgate.tools.reading.workers.pictures import FittedPicture
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.decoder import has_odd_bytes
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import Conclusion, NewOutput, ProgramEnd

MAX_ERROR = 64 * 2**10  # characters of an error: it may hold a piece of a command's output


def clean_answer(value: Any) -> Any:
    """Return the result of a request with clean texts."""
    clean = CLEANERS.get(type(value))
    return value if clean is None else clean(value)


def clean_run(run: Run) -> Run:
    command, reason = clean_text(run.command), run.reason and clean_text(run.reason)
    hits = [clean_text(hit) for hit in run.hits]
    if (command, reason, hits) == (run.command, run.reason, run.hits):
        return run
    return replace(run, command=command, reason=reason, hits=hits)


def clean_end(end: TaskEnded) -> TaskEnded:
    return replace(end, run=clean_run(end.run))


def _clean_program_end(end: ProgramEnd) -> ProgramEnd:
    return replace(end, hits=[clean_text(hit) for hit in end.hits], reason=end.reason and clean_text(end.reason))


def clean_error(error: ErrorData) -> ErrorData:
    """Return an error whose text may be shown."""
    arguments = [clean_text(each[:MAX_ERROR]) if isinstance(each, str) else each for each in error.arguments]
    return replace(error, text=clean_text(error.text[:MAX_ERROR]), arguments=arguments)


def _clean_output(text: str) -> str:
    """Return output without escape sequences and control characters. Others of its characters are a command's."""
    data = text.encode(errors="replace")
    is_odd = "\x1b" in text or "\x9b" in text or has_odd_bytes(data)
    return clean_output(data, final=True)[0] if is_odd else text


def _clean_conclusion(conclusion: Conclusion) -> Conclusion:
    excerpt = replace(conclusion.excerpt, text=_clean_output(conclusion.excerpt.text))
    refused = conclusion.refused and clean_text(conclusion.refused)
    return replace(conclusion, run=clean_run(conclusion.run), excerpt=excerpt, refused=refused)


def _clean_document(document: PageDocument) -> PageDocument:
    texts = {name: clean_text(getattr(document, name)) for name in ("url", "title", "text")}
    return replace(document, **texts, note=document.note and clean_text(document.note))


def _clean_outcome(outcome: JobOutcome) -> JobOutcome:
    return replace(outcome, exceeded=clean_text(outcome.exceeded), refusal=clean_text(outcome.refusal))


def _clean_items(items: Any) -> Any:
    return type(items)(map(clean_answer, items))


CLEANERS: dict[type, Callable[[Any], Any]] = {
    Run: clean_run,
    Conclusion: _clean_conclusion,
    NewOutput: lambda new: replace(new, run=clean_run(new.run), text=_clean_output(new.text)),
    ProgramEnd: _clean_program_end,
    PageDocument: _clean_document,
    FittedPicture: lambda picture: replace(picture, note=clean_text(picture.note)),
    JobOutcome: _clean_outcome,
    tuple: _clean_items,
    list: _clean_items,
}
