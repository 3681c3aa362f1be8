"""What the pages say of rows: their words, causes, groups, sources and power. Pure."""
