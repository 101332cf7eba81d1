"""Print the CustomResourceDefinition."""

from edl_allreduce.spec.resource.crd import text

print(text(), end="")
