"""What may commit on which head (docs/architecture/transaction-log.md)."""
