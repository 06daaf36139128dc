package criadapter

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// info is the JSON in a verbose status. CRI does not define its form: containerd sends both
// fields, CRI-O only the runtimeSpec, and either may be missing.
type info struct {
	Config map[string]json.RawMessage `json:"config"` // of the create request, as encoding/json or protojson writes it
	Spec   struct {
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

func parseInfo(text map[string]string) *info {
	i := &info{}
	_ = json.Unmarshal([]byte(text["info"]), i) // a field that cannot be read stays empty
	return i
}

// containerConfig returns the config that the container was created with, as far as info has it,
// and its environment.
func (i *info) containerConfig() (*runtimeapi.ContainerConfig, map[string]string) {
	envs := i.environment()
	delete(i.Config, "envs") // environment has read them; their values are text or bytes, depending on the version
	c := &runtimeapi.ContainerConfig{}
	i.read(c)
	return c, envs
}

// read fills in the config that the pod or container was created with, as far as info has it.
func (i *info) read(m proto.Message) {
	data, err := json.Marshal(i.Config)
	if err != nil {
		return // cannot happen: it was read from JSON
	}
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m) != nil {
		proto.Reset(m) // no config is better than half of one
	}
}

// environment returns the variables that the container was created with. It takes their names from
// the config, and their values from the runtimeSpec, which also has the variables of the image. In
// the config the values are text or base64, depending on the version, and a value may look like both.
func (i *info) environment() map[string]string {
	var listed []struct{ Key, Value string }
	if json.Unmarshal(i.Config["envs"], &listed) != nil {
		return nil
	}
	running := map[string]string{}
	for _, pair := range i.Spec.Process.Env {
		key, value, _ := strings.Cut(pair, "=")
		running[key] = value
	}
	envs := map[string]string{}
	for _, kv := range listed {
		value, ok := running[kv.Key]
		if !ok {
			value = kv.Value
			if b, err := base64.StdEncoding.DecodeString(value); err == nil && utf8.Valid(b) {
				value = string(b)
			}
		}
		envs[kv.Key] = value
	}
	return envs
}

// cgroupParent returns the parent of the pod's cgroup. The path of the pod's cgroup is
// "/parent/id" or, in systemd's form, "parent.slice:prefix:id".
func (i *info) cgroupParent() string {
	p := i.Spec.Linux.CgroupsPath
	if slice, _, ok := strings.Cut(p, ":"); ok {
		return slice
	}
	if p == "" {
		return ""
	}
	return path.Dir(p)
}
