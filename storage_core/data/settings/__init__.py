"""The settings of a table, and the forms of their values."""
