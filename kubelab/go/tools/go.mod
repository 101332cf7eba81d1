module kubelab/go/tools

go 1.21
