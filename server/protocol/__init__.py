"""Speak MCP without a wire: messages, revisions, sessions and the dispatcher.

Enter at `dispatcher`. It imports the standard library, msgspec and itself, with few exceptions.
"""
