"""A state folder as one file, and back. Knows nothing of the command line."""
