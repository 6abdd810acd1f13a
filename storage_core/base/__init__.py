"""Modules that all folders use: errors, text, time, the process, limits. They import no other folder."""
