"""One format a file: a report goes in, text comes out."""
