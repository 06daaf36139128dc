package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/profile"
)

// versionedLists writes a CRI in which the replies of ListPodSandbox and ListMetricDescriptors have a
// resource_version, which is no list, as a descriptor set.
func versionedLists(t *testing.T) string {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	require.NoError(t, proto.Unmarshal(criadapter.Schema().Descriptors(), set))
	changed := 0
	for _, file := range set.GetFile() {
		for _, m := range file.GetMessageType() {
			if m.GetName() == "ListPodSandboxResponse" || m.GetName() == "ListMetricDescriptorsResponse" {
				m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
					Name: proto.String("resource_version"), JsonName: proto.String("resourceVersion"), Number: proto.Int32(2),
					Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
				})
				changed++
			}
		}
	}
	require.Equal(t, 2, changed)
	b, err := proto.Marshal(set)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "newer.binpb")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	return file
}

func TestANewFieldThatIsNoListIsThePrimarys(t *testing.T) {
	t.Parallel()
	file := versionedLists(t)
	version := func(v string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), v)
	}
	pods := func(id, v string) replies {
		list := encode(t, &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: id}}})
		return replies{"ListPodSandbox": append(list, version(v)...), "ListMetricDescriptors": version(v)}
	}
	for name, c := range map[string]struct{ rules, want, warns string }{
		"no rule says whose": {"{}", "7", "ListPodSandbox: each backend replies with a value of resource_version"},
		"a rule says whose":  {"methods: {ListPodSandbox: {all: concat, winners: {resource_version: last}}}", "9", ""},
		"a rule for others":  {"methods: {'List*': {all: concat}}", "7", "ListPodSandbox: each backend replies with a value of resource_version"},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := profile.ParseRules([]byte(c.rules))
			require.NoError(t, err)
			n := merged(t, func(cfg *config.Config) { cfg.Proto, cfg.Rules = []string{file}, rules }, pods("1", "7"), pods("2", "9"))
			reply := &codec.Frame{}
			require.NoError(t, n.cc.Invoke(t.Context(), runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &codec.Frame{}, reply))
			var list runtimeapi.ListPodSandboxResponse
			require.NoError(t, proto.Unmarshal(reply.Bytes(), &list))
			assert.Len(t, list.GetItems(), 2)
			assert.True(t, strings.HasSuffix(string(list.ProtoReflect().GetUnknown()), string(version(c.want))), "%q: the last one counts", list.ProtoReflect().GetUnknown())
			require.NoError(t, n.cc.Invoke(t.Context(), runtimeapi.RuntimeService_ListMetricDescriptors_FullMethodName, &codec.Frame{}, reply))
			assert.Equal(t, string(version("7")), string(reply.Bytes()), "code that merges keeps the primary's")

			cfg := *n.cfg
			r, err := Examine(t.Context(), &cfg)
			require.NoError(t, err)
			warnings := strings.Join(r.Warnings, "\n")
			if c.warns == "" {
				assert.NotContains(t, warnings, "each backend replies")
			} else {
				assert.Contains(t, warnings, c.warns)
			}
		})
	}
}
