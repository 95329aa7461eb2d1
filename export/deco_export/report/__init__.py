"""A page about the labelled images and what the bundle makes of them, for who labels them (docs/guide/report.md)."""
