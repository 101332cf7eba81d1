// This file only names what is built, so that go.mod and go.sum pin it.

//go:build tools

package tools

import _ "github.com/fsouza/fake-gcs-server"
