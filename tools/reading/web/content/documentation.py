"""Recognize documentation, of which all is content but menus and footers."""

from toolgate.tools.reading.web.content.blocks import PageBlocks
from toolgate.tools.reading.web.html.edit import Element

GENERATORS = (
    *("antora", "asciidoc", "docbook", "docfx", "docusaurus", "docutils", "doxygen", "gitbook", "groff", "hevea"),
    *("javadoc", "jsdoc", "latex", "makeinfo", "man2html", "mdbook", "mkdocs", "pandoc", "pod2html", "rustdoc"),
    *("sphinx", "starlight", "texinfo", "typedoc", "vitepress"),
)
CODE_TAGS = ("pre", "code", "kbd", "samp", "tt", "var")
CODE_SHARE = 0.03  # of a page's letters: a lower one would take articles for it


def find_generator(tree: Element) -> str:
    """Return the names of the programs that made a page, as it says."""
    return " ".join(each.get("content") or "" for each in tree.iterfind(".//meta[@name='generator']"))


def is_documentation(body: Element, page: PageBlocks, generator: str) -> bool:
    if any(name in generator.lower() for name in GENERATORS):
        return True
    letters = sum(len(block.text) for block in page.blocks)
    codes = (each for each in body.iter(*CODE_TAGS) if each is body or each.getparent().tag not in CODE_TAGS)
    code_letters = sum(len("".join(text.split())) for code in codes for text in code.itertext())
    return code_letters > CODE_SHARE * letters
