"""The proxy by which others' programs reach the network: a browser's pages, commands in a sandbox. What is asked for
meets the check of the web tools. Knows nothing of pages, principals or namespaces."""
