"""Tests of the report's page and data, some of them in a browser; a package so that they can share reports.py."""
