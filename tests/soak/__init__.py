"""Mixed load on real servers for any length of time, and samples of the servers' resources."""
