"""FOR ONE PRICE: grow a tree once, back it up for every dual."""
