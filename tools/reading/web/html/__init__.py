"""Parse an HTML page, prepare its tree for the choice of the content, and write the content as Markdown or text.

Enter at `parse`, `prepare` and `markdown`. tools/reading/web and tools/reading/search import it.
"""
