"""The dump: one folder per compiled graph, with every stage as text (docs/debugging.md, "Reading a dump")."""
