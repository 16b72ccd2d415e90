"""All knowledge of one framework a file: how its models are opened, described and run."""
