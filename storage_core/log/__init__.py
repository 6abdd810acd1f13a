"""The transaction log (docs/architecture/transaction-log.md)."""
