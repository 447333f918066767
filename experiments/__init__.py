"""The paper's experiments again: tables and figures beside the numbers it published. Not part of the package."""
