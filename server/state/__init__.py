"""Store what must survive a restart: tasks, plans, callbacks, sessions, people, OAuth clients and grants, and keys.

Enter by store.Store.transact; each subject has a module of rows. Nothing here knows a transport or a JSON-RPC method.
"""
