"""The base of all folders, which imports no other folder: errors, text, time, the process, limits."""
