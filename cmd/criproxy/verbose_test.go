package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
)

func TestReadOnlyShowsNoEnvironments(t *testing.T) {
	p := newProcess(t)
	at := func(name string) string { return filepath.Join(p.dir, name+".sock") }
	p.write("listeners:\n- {path: " + at("read") + ", access: [{methods: [read-only]}]}\n- {path: " + at("named") + ", access: [{methods: [read-only, ContainerStatus]}]}\n")
	p.launch()
	for name, want := range map[string]codes.Code{"read": codes.PermissionDenied, "named": codes.NotFound, "front": codes.NotFound} {
		client := runtimeapi.NewRuntimeServiceClient(p.connect(at(name)))
		for verbose, want := range map[bool]codes.Code{false: codes.NotFound, true: want} {
			_, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "gamma.io__1", Verbose: verbose})
			assert.Equal(t, want, status.Code(err), "%s, verbose %t: %v", name, verbose, err)
		}
		_, err := client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		assert.Equal(t, name != "front", status.Code(err) == codes.PermissionDenied, "%s: %v", name, err)
	}
	p.end()
}

func TestAllThatCanBeVerboseIsKnown(t *testing.T) {
	for _, m := range criadapter.Schema().Methods() {
		field := verboseFields[filepath.Base(m.Name)]
		if fd := m.Input.Fields().ByName("verbose"); fd != nil {
			assert.Equal(t, fd.Number(), field, m.Name)
			assert.Equal(t, protoreflect.BoolKind, fd.Kind())
		} else {
			assert.Zero(t, field, m.Name)
		}
	}
}

func TestABrokenRequestMayBeVerbose(t *testing.T) {
	assert.False(t, asks(nil, 2))
	assert.False(t, asks([]byte("\x0a\x011\x10\x00"), 2))
	assert.True(t, asks([]byte("\x0a\x011\x10\x01"), 2))
	assert.False(t, asks([]byte("\x10\x01\x10\x00"), 2), "the last one holds")
	assert.True(t, asks([]byte("\x0a\x051"), 2))
	assert.True(t, asks([]byte("\x80"), 2))
}
