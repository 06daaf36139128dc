package why

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/observe/calls"
)

// why POD of a pod that was well said that another runtime was gone (issue 42).
func TestWhatConcernsAPodIsAboutItOrItsRuntime(t *testing.T) {
	status := func(name, runtime string) *call {
		return &call{method: "ContainerStatus", from: "kubelet", began: time.Unix(1, 0), ended: true, about: calls.About{Namespace: "shop", Pod: name}, legs: []leg{{backend: runtime, ended: true}}}
	}
	all := &call{method: "ListContainers", from: "kubelet", began: time.Unix(2, 0), ended: true, legs: []leg{{backend: "primary", ended: true}, {backend: "kata.io", ended: true}}}
	v := &view{calls: []*call{status("web", "primary"), status("vm", "kata.io"), all}}
	for name, one := range map[string]struct {
		finding Finding
		pod     string
		want    bool
	}{
		"the pod":                     {Finding{Pods: []string{"shop/vm", "shop/web"}}, "web", true},
		"another pod":                 {Finding{Pods: []string{"shop/vm"}}, "web", false},
		"another pod of its runtime":  {Finding{Pods: []string{"shop/db"}, Backends: []string{"primary"}}, "web", false},
		"its runtime":                 {Finding{Backends: []string{"primary"}}, "web", true},
		"another runtime":             {Finding{Backends: []string{"kata.io"}}, "web", false},
		"both runtimes":               {Finding{Backends: []string{"kata.io", "primary"}}, "shop/vm", true},
		"the node":                    {Finding{}, "web", true},
		"a pod that no call is about": {Finding{Backends: []string{"kata.io"}}, "db", true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, one.want, v.concerns(&one.finding, one.pod))
		})
	}
}
