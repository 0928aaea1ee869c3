"""Chromium, which loads pages and runs their scripts.

Enter at `browser`; no other file is imported from outside this folder, but the errors of `chromium` and
`find_chromium`.
"""
