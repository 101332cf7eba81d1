"""What pages share: who may look, a small HTTP server, and the files of a browser."""
