package criadapter

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// seccomp fills in the field for a seccomp profile that the other side reads. kubelet before 1.19
// sets only the string seccomp_profile_path, a newer kubelet only the message seccomp. CRI-O reads
// only the message, old runtimes only the string. Without this conversion a container would
// silently run without its profile.
var seccomp = director.Conversion{
	Fields: []string{
		"LinuxPodSandboxConfig.security_context",
		"LinuxContainerConfig.security_context",
	},
	Up: func(dst []byte, c rewrite.Class, context []byte) ([]byte, error) {
		return fillProfile(dst, context, contexts[c-1], func(path, profile []byte, has bool, f profileFields) []byte {
			p, ok := profileOf(string(path))
			if has || !ok {
				return nil
			}
			return protowire.AppendBytes(protowire.AppendTag(nil, f.profile, protowire.BytesType), p)
		})
	},
	Down: func(dst []byte, c rewrite.Class, context []byte) ([]byte, error) {
		return fillProfile(dst, context, contexts[c-1], func(path, profile []byte, has bool, f profileFields) []byte {
			if len(path) > 0 || !has {
				return nil
			}
			return protowire.AppendString(protowire.AppendTag(nil, f.path, protowire.BytesType), pathOf(profile))
		})
	},
}

// profileFields are the numbers of the two fields in a security context.
type profileFields struct{ path, profile protowire.Number }

// contexts are the security contexts in the Fields of seccomp, in their order.
var contexts = []profileFields{
	fieldsOf((&runtimeapi.LinuxSandboxSecurityContext{}).ProtoReflect().Descriptor()),
	fieldsOf((&runtimeapi.LinuxContainerSecurityContext{}).ProtoReflect().Descriptor()),
}

func fieldsOf(md protoreflect.MessageDescriptor) profileFields {
	return profileFields{md.Fields().ByName("seccomp_profile_path").Number(), md.Fields().ByName("seccomp").Number()}
}

// fillProfile appends context to dst, and then the field that missing returns, which gets the two
// fields of the context.
func fillProfile(dst, context []byte, f profileFields, missing func(path, profile []byte, has bool, f profileFields) []byte) ([]byte, error) {
	var path, profile []byte
	has := false // an empty profile counts
	for field, err := range wire.Fields(context) {
		switch {
		case err != nil:
			return dst, fmt.Errorf("security context: %w", err)
		case field.Type != protowire.BytesType:
		case field.Number == f.path:
			path = field.Bytes()
		case field.Number == f.profile:
			profile, has = field.Bytes(), true
		}
	}
	return append(append(dst, context...), missing(path, profile, has, f)...), nil
}

const localhost = "localhost/"

// profileOf turns the string into a SecurityProfile. It reports false for the empty string, and
// for one that no version of CRI defines.
func profileOf(path string) ([]byte, bool) {
	ref, isLocal := strings.CutPrefix(path, localhost)
	switch {
	case path == "runtime/default", path == "docker/default":
		return profileBytes(runtimeapi.SecurityProfile_RuntimeDefault, ""), true
	case path == "unconfined":
		return profileBytes(runtimeapi.SecurityProfile_Unconfined, ""), true
	case isLocal:
		return profileBytes(runtimeapi.SecurityProfile_Localhost, ref), true
	}
	return nil, false
}

func profileBytes(t runtimeapi.SecurityProfile_ProfileType, ref string) []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(t))
	if ref != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), ref)
	}
	return b
}

// pathOf is the opposite of profileOf.
func pathOf(profile []byte) string {
	var t uint64
	var ref string
	for f := range wire.Fields(profile) { // ends where a malformed profile does
		switch {
		case f.Number == 1 && f.Type == protowire.VarintType:
			t = f.Uint()
		case f.Number == 2 && f.Type == protowire.BytesType:
			ref = string(f.Bytes())
		}
	}
	switch runtimeapi.SecurityProfile_ProfileType(t) {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return "runtime/default"
	case runtimeapi.SecurityProfile_Localhost:
		return localhost + ref
	default:
		return "unconfined"
	}
}
