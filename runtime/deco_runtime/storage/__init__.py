"""The bundle and the learned state, and the reading of files that nobody vouches for."""
