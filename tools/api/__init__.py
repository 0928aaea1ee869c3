"""The parts that tools are made of: registry, schemas, content, errors and the context of a call.

Enter at `tool`. Plugins import it through `toolgate.tools`; every room may import it, and it imports no built-in tool.
"""
