"""Threads and lifetimes: the pipeline, its workers, the receiver's supervision, shutdown."""
