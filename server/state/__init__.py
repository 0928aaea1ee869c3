"""Store what must survive a restart: tasks, plans, callbacks, sessions, people, OAuth clients and grants, and keys.

Enter at `store.Store.transact`; `app.features.open_store` opens the store; `rows` has a file a subject. It imports no
transport and no method of JSON-RPC.
"""
