package runtimes

import (
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// PushE2ENode stores the images that Kubernetes' tests of containers' lives name, under registry.k8s.io, for a mirror: agnhost,
// which is the program of that name over the machine's busybox, busybox and pause.
func (r *Registry) PushE2ENode(agnhost string) error {
	busybox, err := Busybox()
	if err != nil {
		return err
	}
	programs, err := busyboxLayer(busybox)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(agnhost)
	if err != nil {
		return fmt.Errorf("testbed: reading agnhost: %w", err)
	}
	own, err := layer(plain(map[string]string{"/agnhost": string(program)}, 0o755))
	if err != nil {
		return err
	}
	pause, err := newImage(imageSpec{App: r.config.App, Cmd: []string{"pause"}})
	if err != nil {
		return err
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	shell, err := assemble(v1.Config{Env: env, Cmd: []string{"sh"}}, programs)
	if err != nil {
		return err
	}
	host, err := assemble(v1.Config{Env: env, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}, programs, own)
	if err != nil {
		return err
	}
	for name, image := range map[string]v1.Image{
		"e2e-test-images/agnhost:2.63.0": host, "e2e-test-images/busybox:1.37.0-1": shell, "pause:3.10.2": pause,
	} {
		if err := r.Push(name, image); err != nil {
			return err
		}
	}
	return nil
}
