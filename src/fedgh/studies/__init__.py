"""Many runs: comparisons, searches, advice, and the paper's tables and figures run again."""
