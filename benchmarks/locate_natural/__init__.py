"""The natural set: failing pairs that nobody planted, but exporters, converters, quantisers and runtimes make."""
