"""Networks of public libraries; see zoo_test.py."""
