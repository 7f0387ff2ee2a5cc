"""Audits of finished runs: attacks that measure what uploads reveal about the samples."""
