"""Decode the bytes of foreign text by the Encoding standard (encoding.spec.whatwg.org).

Enter at `body`. The conversion of pages and texts imports it.
"""
