"""The paper's tables and figures as studies that can be run: published values beside ours."""
