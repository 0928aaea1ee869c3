"""Toolgate's mounts beside other gateways: what a call of a mounted server costs through each, over stdio and HTTP."""
