"""Image files and folders of them: which there are, and the same picture of each with every OpenCV."""
