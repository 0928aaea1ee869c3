"""Parse arXiv's answer, an Atom feed (info.arxiv.org/help/api)."""

from toolgate.tools.search.engine import EngineAnswer, clean_results

ATOM = "{http://www.w3.org/2005/Atom}"


def parse(body: bytes) -> EngineAnswer:
    """Raises ValueError for what is no Atom feed, or has a document type: entities are how XML attacks."""
    from xml.etree import ElementTree  # start-up

    text = body.decode()  # as UTF-8, whatever it declares: so nothing hides from the next line in another encoding
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("the feed declares a document type")
    try:
        feed = ElementTree.fromstring(text)  # noqa: S314  # no entities get here
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from None
    if feed.tag != f"{ATOM}feed":
        raise ValueError("not an Atom feed")
    names = [f"{ATOM}{name}" for name in ("title", "id", "summary")]
    entries = ([entry.findtext(name, "") for name in names] for entry in feed.iterfind(f"{ATOM}entry"))
    return EngineAnswer(clean_results((title, url, snippet) for title, url, snippet in entries))
