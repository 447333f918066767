"""FILES THAT NO MEMORY HOLDS: divided by user into a work folder, then read part by part."""
