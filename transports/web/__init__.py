"""The web pages: sign-in, consent, account and the first page.

Enter at a page's file. Only `server/app/http_app.py` imports them.
"""
