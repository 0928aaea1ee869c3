# ruff: noqa: E501  # a line of a page reads best as one
"""Fragments of pages by the kind of their content, with what a reader of the page must and must not find.

The texts of a kind's fragments differ, so that one page may hold them all.
"""

from dataclasses import dataclass

PROSE = "<p>" + "The keeper of the light writes down each ship that passes. " * 4 + "</p>"
MORE = "<p>" + "At night the keeper of the light winds the clock that turns the lens. " * 4 + "</p>"


@dataclass(frozen=True)
class Fragment:
    name: str
    html: str
    present: tuple[str, ...]
    absent: tuple[str, ...] = ()


def page(*fragments: str, title: str = "Kinds") -> bytes:
    """Return a page whose article holds the fragments between paragraphs."""
    body = "".join((PROSE, *fragments, MORE))
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><main><article><h1>Head</h1>{body}</article></main>".encode()


CODE = (
    Fragment(
        "a listing in each row",
        '<table class="code"><tr><td class="line-numbers" data-line-number="85"><a>85</a></td><td class="line_content"><pre>'
        '<span class="line">puts 1</span></pre></td></tr><tr><td class="line-numbers">86</td><td class="line_content"><pre>'
        "  puts 2</pre></td></tr></table>",
        ("```\nputs 1\n  puts 2\n```",),
        ("85", "86"),
    ),
    Fragment(
        "rows that only their numbers show to be code",
        '<table class="FileContents"><tr><td class="u-lineNum" data-line-number="1"></td><td>def rows():</td></tr><tr>'
        '<td class="u-lineNum" data-line-number="2"></td><td>    pass</td></tr></table>',
        ("def rows():\n    pass",),
    ),
    Fragment(
        "codes of errors",
        "<table><tr><td><code>404</code></td><td><code>NOT_FOUND</code></td></tr></table>",
        ("| `404` | `NOT_FOUND` |",),
    ),
    Fragment("spaces that do not break", "<pre>if y:\n&nbsp;&nbsp;&nbsp;&nbsp;z()</pre>", ("if y:\n    z()",)),
    Fragment(
        "Sphinx's listing with line numbers",
        '<table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre><span class="normal">71</span>\n'
        '<span class="normal">72</span></pre></div></td><td class="code"><div><div class="highlight"><pre><span></span>'
        "<span>def</span> sphinx():\n    return 1\n</pre></div></div></td></tr></table>",
        ("```\ndef sphinx():\n    return 1\n```",),
        ("71", "| "),
    ),
    Fragment(
        "Hexo's listing",
        '<figure class="highlight python"><table><tr><td class="gutter"><pre><span class="line">73</span><br>'
        '<span class="line">74</span><br></pre></td><td class="code"><pre><span class="line">def hexo():</span><br>'
        '<span class="line">    return 2</span><br></pre></td></tr></table></figure>',
        ("def hexo():\n    return 2\n",),
        ("73", "74"),
    ),
    Fragment(
        "Hugo's listing",
        '<div class="highlight"><div class="chroma"><table class="lntable"><tr><td class="lntd"><pre class="chroma"><code>'
        '<span class="lnt">75\n</span><span class="lnt">76\n</span></code></pre></td><td class="lntd"><pre class="chroma">'
        '<code class="language-py" data-lang="py"><span class="line"><span class="cl">def hugo():\n</span></span>'
        '<span class="line"><span class="cl">    return 3\n</span></span></code></pre></td></tr></table></div></div>',
        ("```py\ndef hugo():\n    return 3\n```",),
        ("75", "76"),
    ),
    Fragment(
        "Rouge's listing",
        '<pre><code><table class="rouge-table"><tbody><tr><td class="gutter gl"><pre class="lineno">77\n78\n</pre></td>'
        '<td class="code"><pre>def rouge():\n    return 4\n</pre></td></tr></tbody></table></code></pre>',
        ("def rouge():\n    return 4\n",),
        ("77", "78"),
    ),
    Fragment(
        "GitHub's lines in a table",
        '<table class="highlight tab-size js-file-line-container" data-lang="go"><tr><td id="L1" class="blob-num" '
        'data-line-number="1"></td><td class="blob-code blob-code-inner"><span>func</span> blob() int {</td></tr><tr>'
        '<td class="blob-num" data-line-number="2"></td><td class="blob-code">\treturn 5</td></tr></table>',
        ("func blob() int {\n\treturn 5",),
    ),
    Fragment(
        "highlight.js's line numbers",
        '<pre><code class="hljs"><table class="hljs-ln"><tbody><tr><td class="hljs-ln-line hljs-ln-numbers" '
        'data-line-number="1"><div class="hljs-ln-n" data-line-number="1"></div></td><td class="hljs-ln-line hljs-ln-code">'
        'let hljs = () =&gt; {</td></tr><tr><td class="hljs-ln-line hljs-ln-numbers"></td>'
        '<td class="hljs-ln-line hljs-ln-code">  return 6</td></tr></tbody></table></code></pre>',
        ("let hljs = () => {\n  return 6",),
    ),
    Fragment(
        "a listing in a plain cell",
        "<table><tr><th>way</th><th>sample</th></tr><tr><td>plain</td><td><pre>def cell():\n    return 7</pre></td></tr>"
        "<tr><td>short</td><td><code>cell()</code></td></tr></table>",
        ("def cell():\n    return 7", "way:** plain", "`cell()`"),
    ),
    Fragment(
        "a listing in a cell with words",
        "<table><tr><td><p>Words before</p><pre>if x:\n    y()</pre><p>and behind</p></td></tr></table>",
        ("Words before\n\n```\nif x:\n    y()\n```\n\nand behind",),
    ),
    Fragment(
        "code with line breaks in a cell",
        "<table><tr><td>a</td><td><code>for i in z:<br>&nbsp;   k(i)</code></td></tr></table>",
        ("for i in z:\n",),
    ),
    Fragment(
        "numbers within the lines",
        '<pre><span class="lineno">81</span>alpha\n<span class="lineno">82</span>  beta\n</pre>',
        ("alpha\n  beta",),
        ("81", "82"),
    ),
    Fragment(
        "numbers that are links",
        '<pre><a id="l83" href="#l83" class="linenr"> 83</a> gamma = 1\n<a id="l84" href="#l84"> 84</a> delta = 2\n</pre>',
        (" gamma = 1\n delta = 2",),
        ("83", "84"),
    ),
    Fragment(
        "numbers that are code",
        '<pre>value = <span class="num">4711</span>\n<span>42</span></pre>',
        ("value = 4711\n42",),
    ),
    Fragment(
        "lines that are blocks",
        '<pre><code><div class="line">eins()</div><div class="line"></div><div class="line">  zwei()</div></code></pre>',
        ("eins()\n\n  zwei()",),
    ),
    Fragment(
        "lines that only a style separates",
        '<pre><code><span class="line">drei()</span><span class="line">  vier()</span></code></pre>',
        ("drei()\n  vier()",),
    ),
    Fragment(
        "links in a listing",
        '<pre>call <a href="/api#f" title="see">f</a>(<a href="/api#x">x</a>)</pre>',
        ("call f(x)",),
        ("](", "/api"),
    ),
    Fragment("a link in code", '<p>Use <code><a href="/ref/g">g</a>(1)</code> here.</p>', ("`g(1)`",), ("/ref/g",)),
    Fragment("code in a link", '<p>See <a href="/ref/h"><code>h</code></a> too.</p>', ("[`h`](",)),
    Fragment("an old listing", "<xmp>raw &\n  text</xmp>", ("raw &\n  text",)),
)

SCRIPTS = (
    Fragment("a power", "<p>Up to 2<sup>32</sup> bytes</p>", ("2^32 bytes",)),
    Fragment("a negative power", "<p>in 10<sup>-6</sup> s, 10<sup>−9</sup> s</p>", ("10^-6 s", "10^−9 s")),
    Fragment("a sum as a power", "<p>x<sup>n + 1</sup> grows</p>", ("x^(n + 1) grows",)),
    Fragment("an index", "<p>the sum x<sub>1</sub>+x<sub>2</sub></p>", ("x₁+x₂",)),
    Fragment("a named index", "<p>below v<sub>max</sub> only</p>", ("v_max only",)),
    Fragment("a pair as an index", "<p>the cell a<sub>i,j</sub> holds</p>", ("a_(i,j) holds",)),
    Fragment(
        "a formula of chemistry",
        "<p>CO<sub>2</sub> and C<sub>6</sub>H<sub>12</sub>O<sub>6</sub></p>",
        ("CO₂ and C₆H₁₂O₆",),
    ),
    Fragment("a charge", "<p>Ca<sup>2+</sup> and Na<sup>+</sup></p>", ("Ca^2+ and Na+",)),
    Fragment(
        "a power in a table",
        "<table><tr><th>n</th><th>v</th></tr><tr><td>a</td><td>10<sup>3</sup></td></tr></table>",
        ("| 10^3 |",),
    ),
    Fragment("a power in a heading", "<h2>m<sup>2</sup> of floor</h2>", ("## m^2 of floor",)),
    Fragment("a power in code", "<p><code>2<sup>64</sup></code>, <code>y<sub>0</sub></code></p>", ("`2^64`", "`y₀`")),
    Fragment("a power in a listing", "<pre>a = 2<sup>8</sup>\nb</pre>", ("a = 2^8\nb",)),
    Fragment("emphasis in a power", "<p>e<sup><i>x</i></sup> and e<sup><em>i</em>π</sup></p>", ("e^x and e^iπ",)),
    Fragment("a power of a power", "<p>2<sup>3<sup>4</sup></sup> is large</p>", ("2^(3^4) is large",)),
    Fragment("an ordinal", "<p>the 1<sup>st</sup> and 42<sup>nd</sup> day</p>", ("the 1st and 42nd day",)),
    Fragment("a mark of trade", "<p>Lamp<sup>TM</sup> and Glass<sup>®</sup></p>", ("LampTM and Glass®",)),
    Fragment("a footnote", '<p>as said<sup><a href="#fn7">7</a></sup> before</p>', ("as said[7] before",)),
    Fragment(
        "a footnote in brackets", '<p>as told<sup id=r><a href="#cite8">[8]</a></sup> then</p>', ("as told[8] then",)
    ),
    Fragment("a footnote elsewhere", '<p>as read<sup><a href="/notes/9">9</a></sup> there</p>', ("/notes/9)",)),
    Fragment(
        "a long note",
        "<p>so<sup>this is a note that is much longer than any number would be</sup>.</p>",
        ("sothis is a note",),
    ),
)

FORMULAS = (
    Fragment(
        "LaTeXML", r'<p>Let <math alttext="\alpha\leq 1"><mi>α</mi></math> hold.</p>', (r"Let $\alpha\leq 1$ hold.",)
    ),
    Fragment(
        "LaTeXML's equation",
        '<table class="ltx_equation ltx_eqn_table"><tbody><tr class="ltx_eqn_row"><td class="ltx_eqn_cell"></td>'
        r'<td class="ltx_eqn_cell"><math alttext="\beta=%&#10;2" display="block"><mi>β</mi></math></td>'
        '<td class="ltx_eqn_cell">(41)</td></tr></tbody></table>',
        ("$$\\beta=2$$", "(41)"),
        ("|",),
    ),
    Fragment(
        "KaTeX",
        '<p>So <span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>a</mi></mrow><annotation '
        'encoding="application/x-tex">a^2+b_1</annotation></semantics></math></span><span class="katex-html" '
        'aria-hidden="true"><span class="base">a2+b1</span></span></span>.</p>',
        ("So $a^2+b_1$.",),
        ("a2+b1",),
    ),
    Fragment(
        "KaTeX on a line of its own",
        '<p>Thus <span class="katex-display"><span class="katex"><span class="katex-mathml"><math display="block"><semantics>'
        r'<mi>c</mi><annotation encoding="application/x-tex">c=\sqrt{3}</annotation></semantics></math></span>'
        '<span class="katex-html" aria-hidden="true">c=3</span></span></span> follows.</p>',
        ("$$c=\\sqrt{3}$$",),
        ("c=3",),
    ),
    Fragment("MathJax 2 in a line", r'<p>So <script type="math/tex">d^2</script> holds.</p>', ("So $d^2$ holds.",)),
    Fragment(
        "MathJax 2 after it ran",
        '<p>So <span class="MathJax_Preview">preview</span><span class="MathJax" data-mathml="x"><nobr>e3</nobr></span>'
        '<script type="math/tex" id="m1">e^3</script> too.</p>',
        ("$e^3$ too.",),
        ("preview", "e3"),
    ),
    Fragment(
        "MathJax 2 on a line of its own",
        r'<div>Now</div><script type="math/tex; mode=display">f < g \\ h</script>',
        (r"$$f < g \\ h$$",),
    ),
    Fragment(
        "MathJax 3",
        '<p>So <mjx-container class="MathJax" jax="CHTML"><mjx-math aria-hidden="true"><mjx-mi><mjx-c class="mjx-c1D45E">'
        '</mjx-c></mjx-mi></mjx-math><mjx-assistive-mml display="inline"><math><mi>q</mi><mo>+</mo><mn>8822</mn></math>'
        "</mjx-assistive-mml></mjx-container>.</p>",
        ("So $q+8822$.",),
    ),
    Fragment(
        "MathJax 3 on a line of its own",
        '<mjx-container jax="SVG" display="true"><svg><path d="M0"/></svg><mjx-assistive-mml display="block"><math '
        'display="block"><msup><mi>r</mi><mn>2</mn></msup></math></mjx-assistive-mml></mjx-container>',
        ("$$r^2$$",),
    ),
    Fragment(
        "Wikipedia",
        '<p>Here <span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;"><math '
        r'alttext="{\displaystyle s_{1}}"><semantics><mi>s</mi><annotation encoding="application/x-tex">{\displaystyle '
        r's_{1}}</annotation></semantics></math></span><img src="/math/render/svg/5" class="mwe-math-fallback-image-inline" '
        r'alt="{\displaystyle s_{1}}"></span> is.</p>',
        ("Here $s_{1}$ is.",),
        ("displaystyle", "![", "render"),
    ),
    Fragment(
        "a picture of a formula",
        r'<p>so <img class="latex" src="/l.png" alt="\frac{5}{6}"> it is</p>',
        (r"so $\frac{5}{6}$ it is",),
    ),
    Fragment(
        "delimiters for a script", r'<p>the <span class="math notranslate">\(t^7\)</span> term</p>', ("the $t^7$ term",)
    ),
    Fragment(
        "bare MathML", "<p>So <math><mi>x</mi><mo>=</mo><mn>4711</mn></math> holds.</p>", ("So $x = 4711$ holds.",)
    ),
    Fragment(
        "a fraction and a root",
        "<p><math><mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><msqrt><mi>b</mi></msqrt></mfrac></math></p>",
        (r"$\frac{a+1}{\sqrt{b}}$",),
    ),
    Fragment(
        "a sum with limits",
        "<p><math><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><msubsup><mi>x</mi>"
        "<mi>i</mi><mn>2</mn></msubsup></math></p>",
        ("$∑_{i = 1}^n x_i^2$",),
    ),
    Fragment(
        "a matrix",
        "<p><math><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd><mtd><mn>4"
        "</mn></mtd></mtr></mtable><mo>)</mo></math></p>",
        (r"1 & 2 \\ 3 & 4",),
    ),
    Fragment(
        "an accent",
        "<p><math><mover><mi>v</mi><mo>→</mo></mover><mo>≤</mo><mi>sin</mi><mi>φ</mi></math></p>",
        (r"$\vec{v} ≤ \sin φ$",),
    ),
)

PANELS = (
    Fragment("a tab's panel", '<div role="tabpanel" hidden><pre><code>yarn add x</code></pre></div>', ("yarn add x",)),
    Fragment(
        "a tab's panel hidden by a style",
        '<div role="tabpanel" style="color:red; display: none">pnpm add x</div>',
        ("pnpm add x",),
    ),
    Fragment(
        "tabs that name their panels",
        '<div role="tablist"><button role="tab" aria-controls="w1">Windows</button><button role="tab" aria-controls="w2">macOS'
        '</button></div><div id="w1" role="tabpanel">Use winget.</div><div id="w2" role="tabpanel" hidden>Use brew.</div>',
        ("**Windows**\n\nUse winget.", "**macOS**\n\nUse brew."),
    ),
    Fragment(
        "tabs in order",
        '<div class="tabs-container"><ul role="tablist" class="tabs"><li role="tab" aria-selected="true">Debian</li><li '
        'role="tab" aria-selected="false">Fedora</li></ul><div class="margin"><div role="tabpanel"><p>apt it</p></div><div '
        'role="tabpanel" hidden><p>dnf it</p></div></div></div>',
        ("**Debian**\n\napt it", "**Fedora**\n\ndnf it"),
    ),
    Fragment(
        "Bootstrap's tabs",
        '<ul class="nav nav-tabs"><li class="nav-item"><a class="nav-link" data-bs-toggle="tab" href="#b1">Curl</a></li></ul>'
        '<div class="tab-content"><div class="tab-pane" id="b1" style="display:none">curl -O</div></div>',
        ("**Curl**\n\ncurl -O",),
    ),
    Fragment(
        "tabs by a script",
        '<div class="tab"><button class="tablinks" onclick="openCity(event, \'Oslo\')">Oslo city</button></div>'
        '<div id="Oslo" class="tabcontent" style="display:none"><p>Oslo is cold.</p></div>',
        ("Oslo city", "Oslo is cold."),
    ),
    Fragment(
        "an accordion",
        '<h3><button aria-expanded="false">How long?</button></h3><div hidden>Three days.</div>',
        ("### How long?", "Three days."),
    ),
    Fragment(
        "Bootstrap's accordion",
        '<div class="accordion"><div class="accordion-item"><h2 class="accordion-header"><button class="accordion-button '
        'collapsed" data-bs-toggle="collapse" data-bs-target="#c1">Is it free?</button></h2><div id="c1" class="accordion-collapse '
        'collapse" style="display:none"><div class="accordion-body">It is.</div></div></div></div>',
        ("## Is it free?", "It is."),
    ),
    Fragment(
        "a button without a heading",
        '<button class="accordion" aria-expanded="false" aria-controls="p9">Who pays?</button><div id="p9" hidden>The port.</div>',
        ("**Who pays?**", "The port."),
    ),
    Fragment(
        "a heading in a button",
        "<button type=button><h3>Where to?</h3></button><div>To the pier.</div>",
        ("### Where to?", "To the pier."),
    ),
    Fragment("a button beside a heading", "<h2>Colours <button>edit</button></h2>", ("## Colours",), ("edit",)),
    Fragment(
        "details",
        "<details><summary>More on oil</summary><p>It burns long.</p></details>",
        ("More on oil", "It burns long."),
    ),
    Fragment(
        "details with a heading",
        "<details><summary><h3>Wicks</h3></summary><p>Trim them.</p></details>",
        ("Wicks", "Trim them."),
    ),
    Fragment("found by a search", '<div hidden="until-found">Lenses of glass.</div>', ("Lenses of glass.",)),
    Fragment(
        "hidden from everybody", "<div hidden>SECRET one</div><p style='display:none'>SECRET two</p>", (), ("SECRET",)
    ),
    Fragment("invisible", '<p>seen <span style="visibility: hidden">SECRET three</span></p>', ("seen",), ("SECRET",)),
    Fragment(
        "a menu behind a button",
        '<button aria-expanded="false" aria-controls="m1" aria-haspopup="menu">Menu</button><ul id="m1" role="menu" hidden>'
        "<li>SECRET four</li></ul>",
        (),
        ("SECRET",),
    ),
    Fragment(
        "a dialog behind a button",
        '<button data-bs-toggle="modal" data-bs-target="#d1">Ask</button><div class="modal" id="d1" style="display:none">SECRET '
        "five</div>",
        (),
        ("SECRET",),
    ),
    Fragment(
        "a quotation's source",
        "<blockquote><p>Light is the task.</p><footer>Ada Keeper, <cite>Logbook</cite></footer></blockquote>",
        ("Ada Keeper",),
    ),
    Fragment(
        "an article's notes", "<p>A claim [1].</p><footer><ol><li>REFERENCE one</li></ol></footer>", ("REFERENCE one",)
    ),
)

EMBEDS = tuple(
    Fragment(f"{tag} {where}", html.format(tag), words)
    for number, tag in enumerate(
        (
            '<embed src="a.pdf">',
            '<embed src="a.pdf"/>',
            '<object data="a.swf"><param name="x" value="y">',
            "<source src=a>",
            "<track src=a>",
            "<wbr>",
            "<keygen>",
            "<bgsound src=a>",
        )
    )
    for where, html, words in (
        (
            "between paragraphs",
            f"<div>{{}}<p>AFTER{number} come more words.</p></div>",
            (f"AFTER{number} come more words.",),
        ),
        (
            "in a paragraph",
            f"<div><p>See {{}} LATER{number}, in the same.</p></div>",
            (f"LATER{number}, in the same.",),
        ),
        (
            "before a heading",
            f"<div>{{}}<h2>THEN{number}</h2><p>section {number}</p></div>",
            (f"## THEN{number}", f"section {number}"),
        ),
    )
)

TABLES = (
    Fragment(
        "a layout",
        '<table width="100%"><tr><td>MENU</td><td><h2>Story</h2><p>First para.</p><p>Second para.</p><ul><li>entry</li></ul></td></tr></table>',
        ("## Story\n\nFirst para.\n\nSecond para.\n\n- entry",),
        ("|",),
    ),
    Fragment("one cell", "<table><tr><td>Only words in a box.</td></tr></table>", ("Only words in a box.",), ("|",)),
    Fragment(
        "a layout with a table of data",
        "<table><tr><td>Left<table><tr><th>k</th><th>v</th></tr><tr><td>ka</td><td>va</td></tr></table></td><td>Right</td></tr></table>",
        ("| k | v |", "| ka | va |"),
    ),
    Fragment(
        "data with lines in cells",
        "<table><tr><th>name</th><th>about</th></tr><tr><td>--lens</td><td><p>Turns it.</p><p>Twice.</p></td></tr></table>",
        ("| --lens | Turns it.<br>Twice. |",),
    ),
    Fragment(
        "data with a list in a cell",
        "<table><tr><th>opt</th><th>values</th></tr><tr><td>--oil</td><td><ul><li>whale</li><li>rape</li></ul></td></tr></table>",
        ("| --oil | - whale<br>- rape |",),
    ),
    Fragment(
        "a presentation", '<table role="presentation"><tr><td>uno</td><td>dos</td></tr></table>', ("uno", "dos"), ("|",)
    ),
    Fragment(
        "no padding",
        f"<table><tr><th>p</th><th>q</th></tr><tr><td>{'long' * 30}</td><td>r</td></tr><tr><td>s</td><td>t</td></tr></table>",
        ("| s | t |",),
    ),
)

INVISIBLE = (
    Fragment("soft hyphens", "<p>Kapi&shy;täns&#173;müt\u00adze</p>", ("Kapitänsmütze",)),
    Fragment("zero-width spaces", "<p>zero&#8203;width nar&#8288;row &#x200B;and\u200b</p>", ("zerowidth narrow and",)),
    Fragment("a byte order mark inside", "<p>mid\ufeffdle&#65279;s</p>", ("middles",)),
    Fragment("decomposed letters", "<p>cafe\u0301 Zu\u0308rich</p>", ("café Zürich",)),
    Fragment("in code", "<pre>a\u200b = 1\nb&#8203; = 2</pre>", ("a = 1\nb = 2",)),
    Fragment("without an end", "<p>light&shy house&#173 warden</p>", ("light house warden",)),
    Fragment("joiners stay", "<p>می\u200cخواهم</p>", ("می\u200cخواهم",)),
    Fragment(
        "names of HTML 5", "<p>thin&ZeroWidthSpace;ned &check; &lbrace;x&rbrace; &hellip;</p>", ("thinned ✓ {x} …",)
    ),
)

LISTS = (
    Fragment(
        "a task list",
        '<ul><li class="task-list-item"><input type="checkbox" checked disabled> done one</li><li class="task-list-item"><input '
        'type="checkbox" disabled> open one</li></ul>',
        ("- [x] done one", "- [ ] open one"),
    ),
    Fragment(
        "a task list with labels",
        '<ul data-type="taskList"><li data-checked="true"><label><input type="checkbox" checked><span></span></label><div><p>done '
        'two</p></div></li><li><label><input type="checkbox"> open two</label></li></ul>',
        ("[x]", "done two", "[ ] open two"),
    ),
    Fragment(
        "a box in a table",
        "<table><tr><th>f</th><th>on</th></tr><tr><td>io</td><td><input type=checkbox checked disabled></td></tr></table>",
        ("| io | [x] |",),
    ),
    Fragment(
        "a box of a form",
        "<form><ul><li><label><input type=checkbox> red lamps</label></li></ul></form>",
        (),
        ("[ ] red",),
    ),
    Fragment("a start", "<ol start=5><li>fifth</li><li>sixth</li></ol>", ("5. fifth\n6. sixth",)),
    Fragment("a value", "<ol><li>ein</li><li value=10>zehn</li><li>elf</li></ol>", ("1. ein\n10. zehn\n11. elf",)),
    Fragment("reversed", "<ol reversed><li>drei</li><li>zwei</li><li>eins</li></ol>", ("3. drei\n2. zwei\n1. eins",)),
    Fragment("reversed from a start", "<ol reversed start=9><li>neun</li><li>acht</li></ol>", ("9. neun\n8. acht",)),
    Fragment("zero and below", "<ol start=-1><li>minus</li><li>null</li></ol>", ("-1. minus\n0. null",)),
    Fragment(
        "paragraphs in items",
        "<ol start=3><li><p>third</p><p>more</p></li><li><p>fourth</p></li></ol>",
        ("3. third", "more", "4. fourth"),
    ),
)

LINKS = (
    Fragment(
        "a picture for readers without scripts",
        '<p><img class="lazy" alt="Buoy"><noscript><img src="/real9.png" alt="Buoy"></noscript> there</p>',
        ("Buoy",),
    ),
    Fragment("the way back from a note", '<p>Note one <a href="#r1">↩</a></p>', ("Note one",), ("↩",)),
    Fragment(
        "a heading",
        '<a href="/a9"><h3>Harbour</h3><p>It has two piers.</p></a>',
        ("### [Harbour](", "\n\nIt has two piers."),
        ("piers.](",),
    ),
    Fragment("a title", '<p><a href="/a1" title="The Southern Alps">Alps</a></p>', ("[Alps](",), ("Southern",)),
    Fragment("within the page", '<p>see <a href="#part">the part</a> below</p>', ("see the part below",), ("#part",)),
    Fragment("to the top", '<p>go <a href="#">up</a> again</p>', ("go up again",)),
    Fragment(
        "empty",
        '<p>no<a href="/a2"></a>thing <a href="/a3"><svg><path/></svg></a>here</p>',
        ("nothing here",),
        ("/a2", "/a3", "[]"),
    ),
    Fragment("a picture", '<p><a href="/a4"><img src="/i4.png" alt="A lamp"></a></p>', ("A lamp", "/a4")),
    Fragment("a script", '<p><a href="javascript:void(0)">press</a> it</p>', ("press it",), ("javascript",)),
    Fragment(
        "a permalink",
        '<h2>Oil<a class="headerlink" href="#oil" title="Link to this heading">¶</a></h2>',
        ("## Oil",),
        ("¶", "#oil"),
    ),
    Fragment(
        "a lazy picture",
        '<p><img src="/img/placeholder.gif" data-src="/real5.png" alt="Lens"> of it</p>',
        ("/real5.png",),
        ("placeholder",),
    ),
    Fragment(
        "a lazy set",
        '<p><img src="data:image/gif;base64,R0" srcset="/real6.png 1x, /real7.png 2x" alt="Dome"> of it</p>',
        ("/real6.png",),
    ),
    Fragment(
        "a picture's title",
        '<p><img src="/i8.png" alt="A pier" title="Photo of a pier"> there</p>',
        ("A pier",),
        ("Photo of",),
    ),
)

KINDS: dict[str, tuple[Fragment, ...]] = {
    "code": CODE,
    "superscripts": SCRIPTS,
    "formulas": FORMULAS,
    "panels": PANELS,
    "embeds": EMBEDS,
    "tables": TABLES,
    "invisible characters": INVISIBLE,
    "lists": LISTS,
    "links": LINKS,
}
