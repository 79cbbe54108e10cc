"""Show finished runs: results on disk, tables, figures and pages."""
