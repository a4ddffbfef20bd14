"""The corpus of the built-in model: a seeded generator of our own text, one module per skill."""
