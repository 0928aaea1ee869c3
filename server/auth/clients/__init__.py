"""OAuth clients: their model, where they come from, and how metadata documents are fetched.

Enter at `model`. The authorization server, the sign-in pages and the command line import it.
"""
