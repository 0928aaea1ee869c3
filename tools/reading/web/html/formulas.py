"""Write formulas as text: `$…$` in a line, `$$…$$` on a line of its own.

The page's own TeX is taken where there is one: LaTeXML's and Wikipedia's `alttext`, the annotation of KaTeX and others,
MathJax's scripts, the texts of pictures. Other MathML becomes LaTeX (see `mathml`).
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from toolgate.tools.reading.web.html.edit import (
    REMOVE,
    AttributeIndex,
    Element,
    class_words,
    has_class,
    replace_by_text,
)
from toolgate.tools.reading.web.html.mathml import write_mathml

FRAMES = 8  # elements around a formula that its writer may have put there
FRAME = re.compile(r"katex(?:-mathml)?|mwe-math-.*|mathjax(?:_.*)?|mjx-.*|mjpage.*|ltx_math_unparsed")
DISPLAY = re.compile(
    r"katex-display|mathjax_display|mathjax_svg_display|mwe-math-element-block|mjx-display|mjpage__block"
)
RENDERED = re.compile(r"mathjax(?:_(?:preview|display|svg|svg_display|chtml|mathml|error))?|mjx-chtml|mjx-mathml")
DELIMITED = re.compile(r"math|arithmatex|tex2jax_process|katex-source")
PICTURE = re.compile(r"tex|latex|math|mathtex|mathjax|imgtex|formula|equation|mwe-math-fallback-.*")
PICTURE_SOURCE = re.compile(r"latex\.php|latex\.codecogs|/math/render/|mathtex\.cgi|mimetex|[?&]cht=tx", re.IGNORECASE)
TEX = re.compile(r"tex|latex", re.IGNORECASE)
DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))
STYLE = re.compile(r"\s*\{?\s*\\(?:display|text)style\b(.*)", re.DOTALL)


def write_formulas(body: Element, index: AttributeIndex) -> None:
    """Replace each formula by its text."""
    has_scripts = _write_scripts(body)
    for math, frame in _find_frames(list(body.iter("math"))):
        _replace(frame, _read_tex(math, frame), is_display=_is_display(math, frame))
    for element in index["class"] if has_scripts else ():
        if has_class(element, RENDERED):
            element.tag = REMOVE
    _write_drawings(body)
    _write_delimited(index["class"])
    _write_pictures(body)


def _replace(element: Element, tex: str, *, is_display: bool) -> None:
    if tex and is_display:
        replace_by_text(element, f"$${tex}$$", "div")
    elif tex:
        replace_by_text(element, f"${tex}$")
    else:
        element.tag = REMOVE


def _write_scripts(body: Element) -> bool:
    """Write the formulas that MathJax 2 reads from scripts. Return whether there are any."""
    found = False
    for script in list(body.iter("script")):
        kind, _, mode = script.get("type", "").lower().partition(";")
        tex = script.text or ""
        if kind.strip() == "math/mml":
            tex = _parse_mathml(tex)
        elif kind.strip() not in ("math/tex", "math/latex", "math/asciimath"):
            continue
        found = True
        _replace(script, _clean_tex(tex), is_display="display" in mode)
    return found


def _parse_mathml(source: str) -> str:
    lxml_html: Any = importlib.import_module("lxml.html")  # start-up; untyped
    try:
        fragment = lxml_html.fragment_fromstring(source, create_parent="div")
    except (importlib.import_module("lxml.etree").LxmlError, ValueError):
        return ""
    return write_mathml(fragment)


def _find_frames(formulas: Sequence[Element]) -> list[tuple[Element, Element]]:
    """Return each formula with the outermost element that presents it alone."""
    frames = {math: [math, *filter(_is_frame, islice(math.iterancestors(), FRAMES))] for math in formulas}
    counts = Counter(frame for each in frames.values() for frame in each)
    return [(math, [frame for frame in each if counts[frame] == 1][-1]) for math, each in frames.items()]


def _is_frame(element: Element) -> bool:
    return str(element.tag).startswith("mjx-") or has_class(element, FRAME)


def _is_display(math: Element, frame: Element) -> bool:
    parent = frame.getparent()
    around = [frame, math] if parent is None else [parent, frame, math]
    return (
        math.get("display") == "block"
        or math.get("mode") == "display"
        or frame.get("display") in ("true", "block")
        or any(has_class(each, DISPLAY) for each in around)
    )


def _read_tex(math: Element, frame: Element) -> str:
    return next((tex for source in _sources(math, frame) if (tex := _clean_tex(source))), "") or write_mathml(math)


def _sources(math: Element, frame: Element) -> Iterator[str]:
    for annotation in math.iter("annotation"):
        if TEX.search(annotation.get("encoding", "")):
            yield annotation.text or ""
    for element in (math, frame):
        for name in ("alttext", "data-tex", "data-latex", "data-expr", "data-math"):
            yield element.get(name, "")


def _clean_tex(source: str) -> str:
    """Return TeX on one line, without delimiters, comments at line ends and what only sets its size."""
    tex = " ".join(re.sub(r"(?<!\\)%[ \t]*\n\s*", "", source).split())
    for begin, end in DELIMITERS:
        if len(tex) > len(begin) + len(end) and tex.startswith(begin) and tex.endswith(end):
            tex = tex[len(begin) : -len(end)].strip()
            break
    if styled := STYLE.fullmatch(tex):
        inner = styled[1].strip()
        tex = inner[:-1].strip() if tex.startswith("{") and inner.endswith("}") else inner
    return tex


def _write_delimited(elements: Sequence[Element]) -> None:
    r"""Write what stands in `\(…\)` or `\[…\]` for a script that would show it."""
    for element in elements:
        name = element.get("class", "")
        if ("mat" not in name and "tex" not in name) or not has_class(element, DELIMITED):
            continue
        text = (element.text or "").strip()
        if not len(element) and _is_delimited(text):
            _replace(element, _clean_tex(text), is_display=text.startswith(r"\["))
        for child in element:  # Sphinx writes the number of an equation before it
            text = (child.tail or "").strip()
            if _is_delimited(text):
                child.tail = f" $${_clean_tex(text)}$$"


def _is_delimited(text: str) -> bool:
    return text.startswith((r"\(", r"\[")) and text.endswith((r"\)", r"\]"))


def _write_drawings(body: Element) -> None:
    """Write the formulas that MathJax has drawn without a copy in MathML."""
    for container in list(body.iter("mjx-container")):
        source = next((each.get("data-latex") for each in container.iter() if each.get("data-latex")), "")
        tex = _clean_tex(source) or write_mathml(container)
        _replace(container, tex, is_display=container.get("display") == "true")


def _write_pictures(body: Element) -> None:
    """Write the pictures of formulas, whose text is TeX."""
    for image in list(body.iter("img")):
        tex = image.get("alt", "").strip() or image.get("title", "").strip()
        if not re.search(r"[\\^_={}+]|^\w$", tex):
            continue
        around = (image, *islice(image.iterancestors(), 2))
        is_display = any(map(_is_equation, around))
        if is_display or has_class(image, PICTURE) or PICTURE_SOURCE.search(image.get("src", "")):
            is_display = is_display or any("display" in word for each in around for word in class_words(each))
            _replace(image, _clean_tex(tex), is_display=is_display)


def _is_equation(element: Element) -> bool:
    return element.tag == "div" and "math" in class_words(element)
