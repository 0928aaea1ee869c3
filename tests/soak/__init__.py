"""Load of all kinds at once on real servers, for as long as one likes; and what the servers have in use meanwhile."""
