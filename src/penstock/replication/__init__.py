"""The decisions, pure: the life of a table and when it is tried again."""
