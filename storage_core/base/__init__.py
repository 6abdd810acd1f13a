"""Modules that all folders use: errors, text, time, the process, limits. The modules import no other folder."""
