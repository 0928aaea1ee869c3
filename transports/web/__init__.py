"""The pages people see: sign-in, consent, account and the first page.

Enter at the file of a page. Only `server/http_app.py` imports it.
"""
