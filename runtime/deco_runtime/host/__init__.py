"""The machine: what it is, its threads, files for a moment, work in a process of its own."""
