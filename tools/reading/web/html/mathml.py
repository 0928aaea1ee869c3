"""Write MathML as LaTeX, whose symbols stay letters of Unicode: \\frac{a}{b}, x_i^2, \\sqrt{2}, ∑_{k=1}^{n} k."""

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from toolgate.tools.api.text.cleaning import clean_text
from toolgate.tools.reading.web.html.edit import Element

MAX_LEVELS = 60  # of nested elements; deeper ones are text
SKIPPED = frozenset(("annotation", "annotation-xml", "mphantom", "none", "mprescripts", "surd", "assistive-mml"))
DRAWN = frozenset(("spacer", "nstrut", "dstrut", "line", "rect"))  # by MathJax, without a meaning
GLYPH = re.compile(r"\bmjx-c([0-9A-F]+)\b")
GLYPHS = ("c", "use", "path")
FUNCTIONS = re.compile(
    r"a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|sec|csc|cot|exp|log|ln|lg|lim|limsup|liminf|max|min|sup|inf|det|dim|ker|gcd"
)
ACCENTS = {
    **dict.fromkeys(("¯", "‾", "ˉ", "_", "―"), "\\overline"),
    **dict.fromkeys(("^", "ˆ", "\u0302"), "\\hat"),
    **dict.fromkeys(("~", "˜", "\u0303"), "\\tilde"),
    **dict.fromkeys(("→", "⃗", "⟶"), "\\vec"),
    **dict.fromkeys(("˙", "\u0307"), "\\dot"),
    **dict.fromkeys(("¨", "\u0308"), "\\ddot"),
}
OPERATORS = str.maketrans({"−": "-", "∗": "*", "\u2061": "", "\u2062": "", "\u2063": ",", "\u2064": "+", "\u00a0": " "})
LARGE = frozenset((*"∑∏∐∫∮∬∭⋃⋂⨁⨂⨆", "lim", "max", "min", "sup", "inf", "argmax", "argmin"))
SPACED = frozenset(
    ("=", "<", ">", "≤", "≥", "≠", "≈", "≡", "∼", "→", "←", "⇒", "⇔", "↔", "∈", "∉", "⊂", "⊆", "∣", "∧", "∨")
)
ARGUMENTS = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "mroot": 2, "munder": 2, "mover": 2, "munderover": 3}


def write_mathml(math: Element) -> str:
    """Return a `math` element as LaTeX, without dollar signs."""
    return " ".join(_write(math, 0).split())


def local_name(element: Element) -> str:
    """Return the tag without the prefix of its namespace; what MathJax draws has the names of MathML, too."""
    if node := element.get("data-mml-node"):
        return str(node).lower()
    return str(element.tag).rpartition(":")[2].lower().removeprefix("mjx-")


def _write(element: Element, level: int) -> str:
    name = local_name(element)
    if name in SKIPPED:
        return ""
    if level > MAX_LEVELS:
        return " ".join(element.itertext())
    write = WRITERS.get(name, _write_row)
    return write(element, level + 1)


def _children(element: Element) -> list[Element]:
    return [
        each
        for each in element
        if isinstance(each.tag, str) and local_name(each) not in ("annotation", "annotation-xml")
    ]


def _write_glyph(element: Element, level: int) -> str:
    """Return the letter that MathJax draws: its code is in an attribute or in the class."""
    code = element.get("data-c") or next((found[1] for found in GLYPH.finditer(element.get("class", ""))), "")
    if not re.fullmatch(r"[0-9a-fA-F]{1,6}", code) or int(code, 16) > sys.maxunicode:
        return ""
    return unicodedata.normalize("NFKC", clean_text(chr(int(code, 16))))


def _write_drawn_fraction(element: Element, level: int) -> str:
    parts = [next((each for each in element.iter(f"mjx-{name}")), None) for name in ("num", "den")]
    above, below = (_write_row(part, level).strip() if part is not None else "" for part in parts)
    return f"\\frac{{{above}}}{{{below}}}"


def _write_row(element: Element, level: int) -> str:
    parts = [(element.text or "").strip()]
    for each in _children(element):
        parts += [_write(each, level), (each.tail or "").strip()]
    return _join(parts)


def _join(parts: Sequence[str]) -> str:
    """Join parts, with a space where a command or a word would run into a letter."""
    text = ""
    pieces: list[str] = []
    for part in parts:
        if part and re.search(r"(?:\\[a-zA-Z]+|[^\W\d_]{2,})$", text) and part[0].isalnum():
            pieces.append(" ")
        if part:
            pieces.append(part)
            text = part[-30:]
    return "".join(pieces)


def _text(element: Element) -> str:
    """Return the text of a token, which MathJax draws letter by letter."""
    glyphs = "".join(_write_glyph(each, 0) for each in element.iterdescendants() if local_name(each) in GLYPHS)
    return " ".join((glyphs or "".join(element.itertext())).split())


def _write_identifier(element: Element, level: int) -> str:
    name = _text(element)
    return f"\\{name}" if FUNCTIONS.fullmatch(name) else name


def _write_operator(element: Element, level: int) -> str:
    text = _text(element).translate(OPERATORS).strip()
    return f" {text} " if text in SPACED else text


def _write_words(element: Element, level: int) -> str:
    text = re.sub(r"\s+", " ", "".join(element.itertext())) or _text(element)
    return f"\\text{{{text}}}" if re.search(r"[^\W\d_]", text) else text


def _write_space(element: Element, level: int) -> str:
    return " "


def _group(text: str) -> str:
    text = text.strip()
    return text if len(text) == 1 else f"{{{text}}}"


def _base(text: str) -> str:
    text = text.strip()
    is_closed = re.fullmatch(r"\w*|\\\w+(?:\{[^{}]*\})?|.|[(\[|].*[)\]|]", text, re.DOTALL) is not None
    return text if is_closed else f"{{{text}}}"


def _write_scripts(element: Element, level: int) -> str:
    name = local_name(element)
    base, *scripts = _arguments(element, level, ARGUMENTS[name])
    marks = {"msup": "^", "msub": "_", "msubsup": "_^"}[name]
    return _base(base) + "".join(
        f"{mark}{_group(script)}" for mark, script in zip(marks, scripts, strict=False) if script.strip()
    )


def _write_limits(element: Element, level: int) -> str:
    name = local_name(element)
    base, *scripts = _arguments(element, level, ARGUMENTS[name])
    base = base.strip()
    if base.lstrip("\\") in LARGE:
        marks = {"mover": "^", "munder": "_", "munderover": "_^"}[name]
        pairs = zip(marks, scripts, strict=False)
        return base + "".join(f"{mark}{_group(script)}" for mark, script in pairs if script.strip()) + " "
    if name == "mover" and (accent := ACCENTS.get(scripts[0].strip())):
        return f"{accent}{{{base}}}"
    commands = {"mover": ("overset",), "munder": ("underset",), "munderover": ("underset", "overset")}[name]
    for command, script in zip(commands, scripts, strict=False):
        base = f"\\{command}{{{script.strip()}}}{{{base}}}" if script.strip() else base
    return base


def _arguments(element: Element, level: int, count: int) -> list[str]:
    """Return the texts of the children that the element has by its name; missing ones are empty."""
    children = _children(element)
    if len(children) == 2 and local_name(children[1]) == "script" and count == 3:
        children = [children[0], *reversed(_children(children[1]))]  # MathJax draws the upper one first
    texts = [_write(each, level) for each in children if local_name(each) not in DRAWN]
    texts[count - 1 :] = [_join(texts[count - 1 :])] if len(texts) > count else texts[count - 1 :]
    return texts + [""] * (count - len(texts))


def _write_fraction(element: Element, level: int) -> str:
    children = _children(element)
    if len(children) == 1 and local_name(children[0]) == "frac":
        return _write_drawn_fraction(children[0], level)
    above, below = _arguments(element, level, 2)
    is_bare = re.fullmatch(r"0(?:\.0*)?\s*\w*", element.get("linethickness", "1")) is not None
    return f"\\{'binom' if is_bare else 'frac'}{{{above.strip()}}}{{{below.strip()}}}"


def _write_root(element: Element, level: int) -> str:
    if local_name(element) == "msqrt":
        return f"\\sqrt{{{_write_row(element, level).strip()}}}"
    radicand, index = _arguments(element, level, 2)
    return f"\\sqrt[{index.strip()}]{{{radicand.strip()}}}"


def _write_fenced(element: Element, level: int) -> str:
    separator = (element.get("separators", ",").strip() or " ")[0]
    inner = f"{separator} ".join(_write(each, level).strip() for each in _children(element))
    return f"{element.get('open', '(')}{inner}{element.get('close', ')')}"


def _write_table(element: Element, level: int) -> str:
    rows = [
        " & ".join(_write(cell, level).strip() for cell in _children(row))
        for row in _children(element)
        if local_name(row) in ("mtr", "mlabeledtr")
    ]
    inner = " \\\\ ".join(rows)
    return f"\\begin{{matrix}} {inner} \\end{{matrix}}"


def _write_multiscripts(element: Element, level: int) -> str:
    children = [each for each in element if isinstance(each.tag, str)]
    names = [local_name(each) for each in children]
    at = names.index("mprescripts") if "mprescripts" in names else len(children)
    before, after = children[at + 1 :], children[1:at]
    base = _write(children[0], level).strip() if children else ""
    prescripts = _write_pairs(before, level)
    return ("{}" + prescripts if prescripts else "") + base + _write_pairs(after, level)


def _write_pairs(scripts: Sequence[Element], level: int) -> str:
    texts = [_write(each, level).strip() for each in scripts]
    marks = "_^" * len(texts)
    return "".join(f"{mark}{_group(text)}" for mark, text in zip(marks, texts, strict=False) if text)


WRITERS: dict[str, Callable[[Element, int], str]] = {
    "mi": _write_identifier,
    "mo": _write_operator,
    "mtext": _write_words,
    "ms": _write_words,
    "mspace": _write_space,
    **dict.fromkeys(("msup", "msub", "msubsup"), _write_scripts),
    **dict.fromkeys(("mover", "munder", "munderover"), _write_limits),
    "mfrac": _write_fraction,
    **dict.fromkeys(("msqrt", "mroot"), _write_root),
    "mfenced": _write_fenced,
    "mtable": _write_table,
    "mmultiscripts": _write_multiscripts,
    "frac": _write_drawn_fraction,
    **dict.fromkeys(GLYPHS, _write_glyph),
}
