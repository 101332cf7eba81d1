"""What runs workers: local processes or pods, behind one Protocol."""
