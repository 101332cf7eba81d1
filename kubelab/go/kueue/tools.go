// This file only names what is built, so that go.mod and go.sum pin it.

//go:build tools

package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
