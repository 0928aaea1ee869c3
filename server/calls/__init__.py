"""One tools/call from the client's side: what is asked of it, what it is sent, and its tasks.

Enter at `client`. The methods import it; it imports no method and no transport.
"""
