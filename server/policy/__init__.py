"""Decide which calls may run, and how often: rules, command patterns, rate limits, nonces.

Enter at `rules`. The methods and `app` import it; it imports no method.
"""
