"""Turn signatures into JSON Schemas, and JSON data into the types of a signature.

Enter at `schema`. `reader` reads values as a schema declares them. Every room may import it.
"""
