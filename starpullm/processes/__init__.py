"""Starting, watching and ending processes: children, jobs, ranks, locks, progress reports."""
