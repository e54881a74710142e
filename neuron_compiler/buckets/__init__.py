"""Buckets: one executable for many sizes, where a check of the data flow proves that padding cannot reach a result."""
