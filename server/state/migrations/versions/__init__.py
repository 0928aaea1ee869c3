"""A module a version of the state's schema. What stands here was in use: it is added to, and never changed."""
