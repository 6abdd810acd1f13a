"""Actions as bytes and back, and nothing let in that is not of its field's type."""
