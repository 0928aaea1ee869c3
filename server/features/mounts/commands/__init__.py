"""The commands of mounts: `toolgate mount add`, `remove`, `list`, `test`, `restart`, `review` and `import`.

They alone write what is mounted: no tool, page or request can.
"""
