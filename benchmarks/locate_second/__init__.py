"""A second set of planted faults, made by another hand than `locate_faults` and without a look at the probes."""
