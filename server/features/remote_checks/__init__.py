"""Check a server as a hosted client sees it (`toolgate doctor --url`).

    toolgate doctor --url URL ─→ commands ─→ checks.remote_checks     a table: each check, and those that it needs
                                               │
                     connection     name, TLS, redirects, and a call without a token
                     sign_in        what the challenge leads to: metadata, registration, sign-in page, token endpoint
                     calls          calls with a token, in both eras, and event streams
                                               │
                     RemoteTarget   keeps the results that later checks read; HttpProbe sends the requests

The row of this feature has no class: a server never imports this room. The checked server is not trusted: where a
token goes and which addresses are asked is decided here.

Enter at `checks.remote_checks`. Only `server/config/feature_rows.py` names this room.
"""
