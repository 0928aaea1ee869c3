"""Proxies through which browsers and sandboxed commands reach the network.

Enter at `sandbox_proxy`; the browser's own proxy builds on `http` and `connect`. Every address is vetted as the web
tools vet theirs.
"""
