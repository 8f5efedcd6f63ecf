"""Tests of jobs and children: how each of them can end. They wait much."""
