"""The web pages: sign-in, consent, account and the first page.

Enter at a page's file. `server/app/http_app.py` serves them; features add parts and pages of their own.
"""
