"""Worker processes that decode untrusted pictures and documents.

Enter at `pool`. Images, pages and PDFs import it.
"""
