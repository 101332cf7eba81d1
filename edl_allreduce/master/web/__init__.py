"""The master's page: what happens to a job, live in a browser, and what came of it in one file."""
