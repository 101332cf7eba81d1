// This file only names what is built, so that go.mod and go.sum pin it.

//go:build tools

package tools

import _ "helm.sh/helm/v3/cmd/helm"
