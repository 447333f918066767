"""DATA LARGER THAN MEMORY: divided by user into a work folder, then read part by part."""
