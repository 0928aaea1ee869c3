"""Read PDFs as text: characters, rows of tables, links, form fields, and files that are damaged.

Enter at `reading`. A worker of its own runs it (tools/builtin/worker_main.py).
"""
