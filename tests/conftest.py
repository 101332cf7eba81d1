pytest_plugins = ["kubelab.pytest_plugin"]
