"""What several rooms of the server share: who calls, texts, logs, budgets, asyncio, frames, reports and the bus.

There is no entry: each file is a subject of its own. It imports tools and no other room of the server.
"""
