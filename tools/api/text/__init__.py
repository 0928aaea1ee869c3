"""Read and clean text from elsewhere: JSON, URIs, and lines that are safe in an answer.

There is no entry: each file is a kind of text. It imports `errors` alone, and every room may import it.
"""
