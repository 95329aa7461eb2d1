"""deco-doctor: whether a board can run and learn, and what to do if not.

Its own process imports neither numpy nor a runtime: whatever could die or hang is a job in a process of its own.
"""
