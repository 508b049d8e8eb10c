"""The kit for testing Penstock and what extends it: batches made by hand, behaviour suites, and more."""
