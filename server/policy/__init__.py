"""Who may do what, and how often: rules, command patterns, rate limits, nonces.

Enter at `rules`. The methods and `app` import it; it imports no method.
"""
