"""The commands of nodes: `toolgate node …`, and `toolgate health --node`."""
