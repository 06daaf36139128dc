package fakecri

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Print makes each running container that has a log print a line to it.
func (rt *Runtime) Print(line string) {
	rt.mu.Lock()
	var logs []string
	for c := range rt.containers.all {
		dir, name := c.pod.config.GetLogDirectory(), c.config.GetLogPath()
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING && dir != "" && name != "" {
			logs = append(logs, path.Join(dir, name))
		}
	}
	rt.mu.Unlock()
	for _, log := range logs {
		_ = appendLog(log, line) // like a real log, it is lost if the disk is full
	}
}

// appendLog appends a line to a log, in the format that kubelet and crictl read.
func appendLog(name, line string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s stdout F %s\n", time.Now().Format(time.RFC3339Nano), line)
	return err
}
