"""The pages people see: sign-in, consent, account, home and forms.

Enter at the file of a page. Only `server/http_app.py` imports it.
"""
