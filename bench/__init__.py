"""Throughput, always beside the limit that the source sets, as ratios taken in one run."""
