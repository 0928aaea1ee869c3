"""The parts that tools are made of: registry, functions, content and errors.

Enter at `tool`. Plugins import it through `toolgate.tools`; every room may import it, and it imports no built-in tool.
"""
