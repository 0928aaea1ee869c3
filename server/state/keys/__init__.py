"""Keep the secret keys: in private files, or in the database of several servers, and seal with them.

Enter at `sealing_keys`, and at `file` for a key of one's own. The state, auth and whatever has a key import it.
"""
