"""Turn results into something to read: tables, Markdown, CSV, JSON and formats for CI."""
