"""The natural set: failing pairs that nobody planted, but exporters, converters, quantisers and runtimes make, and
people who export another module than the one they compare with."""
