"""The story of a cluster tells who is to find out what went wrong."""

import json

import pytest

from kubelab import story

pytestmark = pytest.mark.cluster


def test_a_story_has_events_objects_and_logs(cluster, namespace, start_pod, tmp_path):
    since = story.log_sizes(cluster)
    start_pod("talker", "echo I was here", phase="Succeeded")
    story.tell(cluster, tmp_path / "story", since)
    root = tmp_path / "story"
    assert "Pod/talker Scheduled" in (root / "events.txt").read_text()
    assert "I was here" in (root / "pods" / f"{namespace}.talker.main.log").read_text()
    assert "talker" in {
        pod["metadata"]["name"] for pod in json.loads((root / "pods.json").read_text())["items"]
    }
    assert "node-a" in (root / "status.txt").read_text()
    assert (root / "components" / "kubelet-node-a.log").exists()
    whole = (cluster.run / "logs" / "kube-apiserver.log").stat().st_size
    assert (root / "components" / "kube-apiserver.log").stat().st_size < whole


def test_a_story_can_be_told_of_a_cluster_whose_api_server_is_dead(cluster, tmp_path):
    cluster.apiserver.kill()
    story.tell(cluster, tmp_path / "story")
    assert "kube-apiserver             not running" in (tmp_path / "story" / "status.txt").read_text()
