"""Measure readers of pages against gold text: ReadDocs' conversion beside trafilatura and readability-lxml.

Enter at `measure.measure`; `python -m tests.bench.gold.fit` finds the weights of tools/reading/web/content again. The
pages are not in the repository: the options of `python -m tests.bench --only gold` name their folders.
"""
