"""The raw log: one log of many producers for many tables, kept in several stores (design page 03)."""
