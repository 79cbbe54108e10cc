"""Show finished runs: results on disk, tables and pages."""
