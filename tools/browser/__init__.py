"""Render pages in a real Chromium.

Enter at `browser`; no other file is imported from outside this folder, but the errors of `chromium` and
`find_chromium`.
"""
