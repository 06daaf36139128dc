package criadapter

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// v1alpha1 converts between package "runtime", of Kubernetes up to 1.9, and
// runtime.v1. They differ in two messages, which v1alpha2 changed in place:
//
//	NamespaceOption  1 host_network, 2 host_pid, 3 host_ipc: bool → 1 network, 2 pid, 3 ipc: NamespaceMode
//	FilesystemUsage  2 storage_id → 2 fs_id: the same bytes with another meaning
//
// To pass NamespaceOption on as it is would be a security hole: host_network=true
// reads as "network: CONTAINER".
//
// false becomes POD, but for the pid namespace CONTAINER: where kubelet 1.9 sends host_pid=false,
// kubelet 1.10 sends CONTAINER. With POD the containers of a pod would see each other's
// processes.
var v1alpha1 = director.Conversion{
	Fields: []string{
		"LinuxSandboxSecurityContext.namespace_options",
		"LinuxContainerSecurityContext.namespace_options",
		"Namespace.options",
		"FilesystemUsage.fs_id",
	},
	Up: func(dst []byte, c rewrite.Class, options []byte) ([]byte, error) {
		if c == fsID {
			return dst, rewrite.ErrDrop // it is a UUID, not a mount point
		}
		return convertNamespaces(dst, options, func(host [4]uint64) [4]uint64 {
			modes := [4]uint64{2: uint64(runtimeapi.NamespaceMode_CONTAINER)}
			for i := 1; i < len(host); i++ {
				if host[i] != 0 {
					modes[i] = uint64(runtimeapi.NamespaceMode_NODE)
				}
			}
			return modes
		})
	},
	Down: func(dst []byte, c rewrite.Class, options []byte) ([]byte, error) {
		if c == fsID {
			return dst, rewrite.ErrDrop
		}
		return convertNamespaces(dst, options, func(modes [4]uint64) (host [4]uint64) {
			for i := 1; i < len(modes); i++ {
				if modes[i] == uint64(runtimeapi.NamespaceMode_NODE) {
					host[i] = 1
				}
			}
			return host
		})
	},
}

// fsID is the class of FilesystemUsage.fs_id, the fourth of the Fields of v1alpha1.
const fsID rewrite.Class = 4

// convertNamespaces appends options to dst. It converts the fields 1 to 3, which are network, pid
// and ipc, and copies all others.
func convertNamespaces(dst, options []byte, convert func([4]uint64) [4]uint64) ([]byte, error) {
	var values [4]uint64 // :: field number → value
	for f, err := range wire.Fields(options) {
		switch {
		case err != nil:
			return dst, fmt.Errorf("NamespaceOption: %w", err)
		case f.Type == protowire.VarintType && f.Number < protowire.Number(len(values)):
			values[f.Number] = f.Uint()
		default:
			dst = append(dst, f.Raw...)
		}
	}
	for num, v := range convert(values) {
		if v != 0 {
			dst = protowire.AppendTag(dst, protowire.Number(num), protowire.VarintType)
			dst = protowire.AppendVarint(dst, v)
		}
	}
	return dst, nil
}
