"""What several rooms of the server share: who calls, texts, budgets, asyncio, frames and the bus.

There is no entry: each file is a subject of its own. It imports tools and no other room of the server.
"""
