"""Run several pieces of work at once, in turns, at a rate, or in threads. Anybody may import it."""
