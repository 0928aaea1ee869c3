"""Sign in to a server as an OAuth client with a browser, and keep the tokens, for the commands with --url.

Enter at `main` and `credentials`. Only the command line imports it.
"""
