"""Modules that all folders use: errors, text, time, the process, limits. `base` imports no other product folder."""
