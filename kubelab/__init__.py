"""A real Kubernetes on one machine: for tests, for demonstrations, for trying things out.

Real etcd, API server, scheduler, controller manager, kube-proxy, CoreDNS, and nodes that are made of a real
kubelet, containerd, runc and CNI, each node in namespaces of its own. No Docker, no image registry.

Nothing here knows the project it was written for: the folder can be lifted out as it is.
"""

from kubelab.cluster import Cluster
from kubelab.errors import KubelabError
from kubelab.waiting import eventually

__all__ = ["Cluster", "KubelabError", "eventually"]
