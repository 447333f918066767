"""What the columns of a log mean, judged on all of its rows, whatever the parts they came in."""
