package server

import (
	"path/filepath"
	"strings"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/plugins"
)

// newHooks returns the plugins, or nil if cfg turns them off. changes gets their conditions. They outlive a reload, which does
// not change their settings; their own files are read again whenever they change.
func newHooks(cfg *config.Config, changes *telemetry.Changes) (*plugins.Plugins, error) {
	if cfg.Hooks == "" {
		return nil, nil
	}
	h, err := criadapter.Hooks(criadapter.HookOptions{PodResources: cfg.HookPodResources, NativeIDs: cfg.IDs == config.NativeIDs})
	if err != nil {
		return nil, err
	}
	h.Folder = cfg.Hooks
	key, value, _ := strings.Cut(cfg.HookSkipLabel, "=")
	h.Skip = [2]string{key, value}
	h.MaxMessage = cfg.MaxMessageBytes
	if cfg.StateDir != "" {
		h.Servers = filepath.Join(cfg.StateDir, "hook-servers.json")
	}
	h.Watch = telemetry.NewHookLog(changes).Watch
	h.Panicked = recovery.Report
	return plugins.New(h)
}
