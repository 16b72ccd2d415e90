"""Models behind a URL: `open` asks them like others, `protocols` has the forms of bodies, `transport` sends them."""
