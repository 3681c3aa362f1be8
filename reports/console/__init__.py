"""What stands on a terminal, while a run goes on and when it has ended."""
