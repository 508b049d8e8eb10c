"""Everything that needs a JVM: Java itself, the session, Spark's types, and folding changes."""
