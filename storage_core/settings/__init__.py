"""What a table is set to: the entries of `metaData.configuration`, one module per setting, `table` for all."""
