"""Keep each principal and each address within its share: of memory, of the state, and of calls in a while.

Enter at `budget` for sizes and at `rate_limit` for counts. All rooms may import it; it imports the standard library.
"""
