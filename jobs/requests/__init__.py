"""What a job is asked to do, and its one form as command-line arguments."""
