"""A third set of planted faults, in constructions that the first two have not."""
