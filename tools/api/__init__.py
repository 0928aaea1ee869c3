"""What a tool is made of: the registry, schemas, content, errors and the call's context.

Enter at `tool`. Plugins see it through `toolgate.tools`; it imports no built-in tool.
"""
