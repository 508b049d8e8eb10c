"""Placeholder docstring: replaced by the first module of this package."""
