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

// info is the JSON in a verbose status, which CRI does not define. containerd sends both parts,
// CRI-O the second one. All of it may be missing.
type info struct {
	Config map[string]json.RawMessage `json:"config"` // what it was made with, as encoding/json or protojson writes it
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

// podConfig returns what the pod was made with, as far as it can be read.
func (i *info) podConfig() *runtimeapi.PodSandboxConfig {
	c := &runtimeapi.PodSandboxConfig{}
	i.read(c)
	return c
}

// containerConfig returns what the container was made with, as far as it can be read,
// and its environment.
func (i *info) containerConfig() (*runtimeapi.ContainerConfig, map[string]string) {
	envs := i.environment()
	delete(i.Config, "envs") // whose values were text in older versions, and are bytes in newer ones
	c := &runtimeapi.ContainerConfig{}
	i.read(c)
	return c, envs
}

func (i *info) read(m proto.Message) {
	data, err := json.Marshal(i.Config)
	if err != nil {
		return // it was read from JSON
	}
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m) != nil {
		proto.Reset(m) // half of it would be a guess
	}
}

// environment returns the variables that the container was made with. Their values
// are those of its specification, which also has variables of the image: in the
// config they are text or base64, depending on the version, and may look like both.
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

// cgroupParent returns in which cgroup the pod's own is, by the path of that:
// "/parent/id", or in systemd's form "parent.slice:prefix:id".
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
