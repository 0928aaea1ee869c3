"""Issue OAuth tokens: authorize, ask for consent, redeem codes and refresh tokens, revoke, introspect, register.

Enter at `service`: one method for each request. `app`, `auth.setup` and the web pages import it; it imports no page.
"""
