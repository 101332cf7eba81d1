"""A campaign against real jobs: faults from outside, and a judge that believes nothing the product says."""
