"""Where changes go: lakes of tables, and plain memory for tests."""
