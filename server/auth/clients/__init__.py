"""Find, fetch and check OAuth clients: their model, their sources and their metadata documents.

Enter at `model`. The authorization server, the sign-in pages and the command line import it.
"""
