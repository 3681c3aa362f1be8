"""Tables and files for other tools, and what is computed of a run."""
