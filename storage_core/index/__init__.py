"""Full-text, bitmap, embedding and key indexes, stored as segments next to the splits."""
