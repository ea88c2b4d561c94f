"""Training scripts whose numbers are those of one process, or that are refused;
see shapes_test.py."""
