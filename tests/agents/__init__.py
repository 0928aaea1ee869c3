"""Real agents, driven by a scripted model: what each model is sent of Toolgate's answers.

`test_agents` is the way in; `python -m tests.agents codex http` runs one and prints what its model was sent; `matrix`
writes the table of docs/clients.md. Only tests and tests/docs import it."""
