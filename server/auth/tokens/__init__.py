"""Sign and verify tokens: keys, JOSE, our own access tokens and those of external issuers.

Enter at `access_tokens`. The authorization server and the bearer check import it.
"""
