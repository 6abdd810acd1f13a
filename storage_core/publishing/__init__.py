"""Tables as other formats show them, beside what they are: derived, and never the truth."""
