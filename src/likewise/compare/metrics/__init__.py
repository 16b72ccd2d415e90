"""One observation of two arrays a file: pure, bounded, mergeable in any order."""
