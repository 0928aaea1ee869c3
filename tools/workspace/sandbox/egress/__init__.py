"""Proxies through which browsers and sandboxed commands reach the network.

Enter at `sandbox_proxy`; the browser's proxy builds on `http` and `connect`. Addresses are vetted by the web tools'
policy.
"""
