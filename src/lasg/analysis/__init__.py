"""What stored runs say: comparisons, tables, time on links."""
