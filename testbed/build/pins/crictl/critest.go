//go:build critest

// Package crictl names what the test in sigs.k8s.io/cri-tools/cmd/critest imports. Without it go mod tidy would leave
// that out of go.sum, because to this module it is a dependency's test.
package crictl

import (
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
