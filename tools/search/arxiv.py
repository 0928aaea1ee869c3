"""Reads arXiv's answer, an Atom feed (info.arxiv.org/help/api)."""

from toolgate.tools.search.engine import MAX_FOUND, Found

ATOM = "{http://www.w3.org/2005/Atom}"


def parse(body: bytes) -> list[Found]:
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
    return [
        Found(
            entry.findtext(f"{ATOM}title", ""),
            entry.findtext(f"{ATOM}id", ""),
            entry.findtext(f"{ATOM}summary", ""),
        )
        for entry in feed.findall(f"{ATOM}entry")[:MAX_FOUND]
    ]
