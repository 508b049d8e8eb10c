"""Everything that talks to a source database."""
