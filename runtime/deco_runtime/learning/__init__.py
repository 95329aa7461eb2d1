"""Learners, each one file, and what they are made of. numpy only; the engine is passed in."""
