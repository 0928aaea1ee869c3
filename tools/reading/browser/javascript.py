"""Hold the scripts that read a page from an isolated world. Each is one expression."""

LOADED = """
new Promise((done) => {
  if (document.readyState === 'complete') done(true);
  else addEventListener('load', () => done(true));
})
"""

SETTLE = """
new Promise((done) => {
  const start = performance.now();
  let last = start, steps = 10, at = 0;
  new MutationObserver(() => { last = performance.now() })
    .observe(document, {subtree: true, childList: true, characterData: true});
  const height = () => document.documentElement ? document.documentElement.scrollHeight : 0;
  const stride = Math.max(innerHeight, height() / steps);
  const timer = setInterval(() => {
    if (SCROLL && steps-- > 0 && at < height()) { scrollTo(0, at += stride) }
    const now = performance.now();
    if (now - last < QUIET && now - start < MOST) return;
    clearInterval(timer);
    done(now - last >= QUIET);
  }, 25);
})
"""

# Adds what the markup lacks: open shadow trees, and absolute links in a frame.
FLATTEN = """
const flatten = (root) => {
  for (const element of [...root.querySelectorAll('*')]) {
    const shadow = element.shadowRoot;
    if (!shadow) continue;
    for (const slot of [...shadow.querySelectorAll('slot')]) {
      const given = slot.assignedNodes();
      if (given.length) slot.replaceWith(...given);
    }
    for (const style of [...shadow.querySelectorAll('style')]) style.remove();
    flatten(shadow);
    element.replaceChildren(...shadow.childNodes);
  }
};
const plain = () => {
  for (const element of [...document.querySelectorAll('noscript')]) element.remove();
  flatten(document);
};
"""

# [HTTP status or 0, bytes of the source, visible characters, title, length of the markup, the markup]
READ = (
    "(() => {"
    + FLATTEN
    + """
  const seen = document.body && document.body.innerText || '';
  if (FLAT) plain();
  const [navigation] = performance.getEntriesByType('navigation');
  const html = document.documentElement ? document.documentElement.outerHTML : '';
  return [navigation && navigation.responseStatus || 0, navigation && navigation.decodedBodySize || 0,
          seen.trim().length, String(document.title).slice(0, 1000), html.length, html.slice(0, LIMIT)];
})()
"""
)

# The markup of a frame's body, its links absolute
FRAME = (
    "(() => {"
    + FLATTEN
    + """
  plain();
  for (const link of document.querySelectorAll('a[href]')) link.setAttribute('href', link.href);
  for (const image of document.querySelectorAll('img[src]')) image.setAttribute('src', image.src);
  const body = document.body;
  return body && body.localName === 'body' ? body.innerHTML.slice(0, LIMIT) : '';
})()
"""
)


def fill_script(script: str, **values: object) -> str:
    """Return the script with its capitalised placeholders replaced: SCROLL, QUIET, MOST; FLAT, LIMIT."""
    for name, value in values.items():
        script = script.replace(name, str(value).lower() if isinstance(value, bool) else str(value))
    return script
