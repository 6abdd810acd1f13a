"""Older versions on purpose: made the newest again, or kept by a name."""
