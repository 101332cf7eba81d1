"""Jobs on Kubernetes. Only `api` imports the client; manifests are plain dicts."""
