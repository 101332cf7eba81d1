module kubelab/go/pause

go 1.21
