"""What a run left, as the reports read, compare and state it."""
