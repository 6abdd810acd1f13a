"""The transaction log (design page 02)."""
