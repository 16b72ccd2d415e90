"""The weights of both sides laid beside one another: which is which, what differs, and what was put back heals."""
