"""Store what must survive a restart: tasks, plans, callbacks, sessions, people, OAuth clients and grants, and keys.

Enter at `stores.open_store` and `store.Store.transact`; `rows` has a file a subject. It imports no transport and
no method of JSON-RPC.
"""
