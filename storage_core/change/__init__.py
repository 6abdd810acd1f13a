"""Creation and changes of tables: declarations, settings, columns and statements."""
