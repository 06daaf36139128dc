package why

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// at returns a time of the tests.
func at(second int) time.Time { return time.Date(2026, 11, 24, 9, 0, second, 0, time.UTC) }

// made returns a call of kubelet about the pod shop/web that a runtime has answered.
func made(method, runtime string, second int, took time.Duration, code codes.Code, message string) *call {
	return &call{method: method, from: "kubelet", pid: 1, began: at(second), took: took, ended: true, code: code, message: message,
		about: calls.About{Namespace: "shop", Pod: "web", Image: "r.test/app:1"}, legs: []leg{{backend: runtime, took: took, ended: true, code: code}}}
}
