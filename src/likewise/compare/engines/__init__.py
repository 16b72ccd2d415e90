"""Where a plan is carried out, one place a file. Every engine gives the same comparison."""
