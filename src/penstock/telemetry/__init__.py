"""Every log field, once, and how log lines look."""
