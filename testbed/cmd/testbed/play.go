package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"text/template"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// writePlay writes files for experiments: a crictl for each socket, and a pod and a container for each
// runtime.
func (p place) writePlay(crictl, registry string, proxy bool) error {
	for i, instance := range instances {
		rt, err := runtimes.Open(p.instance(instance.name))
		if err != nil {
			return err
		}
		if err := p.writeCrictl(crictl, "crictl-"+instance.name, rt.Endpoint()); err != nil {
			return err
		}
		if i == 0 && !proxy {
			err = p.writeCrictl(crictl, "crictl", rt.Endpoint())
		} else if i == 0 {
			err = p.writeCrictl(crictl, "crictl", "unix://"+p.proxySocket())
		}
		if err != nil {
			return err
		}
		pod := rt.PodConfig("play-" + instance.version)
		image := registry + "/testbed/app:1"
		if i > 0 {
			// This is how a pod gets to a runtime other than the primary. The runtime ignores the annotation, but
			// only criproxy understands the image's name.
			pod.Annotations["kubernetes.io/target-runtime"] = instance.name
			image = instance.name + "/" + image
		}
		container := runtimes.ContainerConfig("app", image, "print", "hello from "+instance.name, "then", "serve", "8080")
		maps.Copy(container.Labels, pod.Labels) // like kubelet: crictl ps shows the pod's name from there
		if err := p.writeJSON(fmt.Sprintf("pod-%s.json", instance.name), pod); err != nil {
			return err
		}
		if err := p.writeJSON(fmt.Sprintf("container-%s.json", instance.name), container); err != nil {
			return err
		}
	}
	return nil
}

// writeCrictl writes a script that runs crictl with a socket. The script passes a configuration file, so that
// crictl does not warn about missing configuration.
func (p place) writeCrictl(crictl, name, endpoint string) error {
	config := p.at(name + ".yaml")
	settings := fmt.Sprintf("runtime-endpoint: %s\nimage-endpoint: %[1]s\ntimeout: 30\n", endpoint)
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --config '%s' \"$@\"\n", crictl, config)
	err := os.WriteFile(config, []byte(settings), 0o644)
	if err == nil {
		err = os.WriteFile(p.at(name), []byte(script), 0o755)
	}
	if err != nil {
		return fmt.Errorf("testbed: writing %s: %w", name, err)
	}
	return nil
}

// writeJSON writes a message as crictl reads it: with the JSON tags of its Go fields, not as ProtoJSON.
func (p place) writeJSON(name string, message any) error {
	data, err := json.MarshalIndent(message, "", "  ")
	if err == nil {
		err = os.WriteFile(p.at(name), data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("testbed: writing %s: %w", name, err)
	}
	return nil
}

var welcome = template.Must(template.New("").Parse(`
The testbed is up in {{.Dir}}
{{range .Runtimes}}
  {{printf "%-9s" .Name}} {{.Says}}
            {{.Endpoint}}
            log: {{.Log}}{{end}}
  registry  {{.Registry}}
            testbed/pause:1 testbed/app:1 testbed/app:2 testbed/other:1 testbed/user:1
            log: {{.Dir}}/registry.log

Try it:

  cd {{.Dir}}
  ./crictl version
  ./crictl pull {{.Registry}}/testbed/app:1
  pod=$(./crictl runp pod-primary.json)
  app=$(./crictl create $pod container-primary.json pod-primary.json)
  ./crictl start $app
  ./crictl logs $app
  ./crictl exec $app app env
  ./crictl ps
{{- if .Proxy}}

The same on the second runtime, through criproxy:

  ./crictl pull two.test/{{.Registry}}/testbed/app:1
  pod=$(./crictl runp pod-two.test.json)
  app=$(./crictl create $pod container-two.test.json pod-two.test.json)
  ./crictl start $app
  ./crictl ps
{{- end}}

./crictl talks to {{(index .Runtimes 0).Name}}; ./crictl-primary and ./crictl-two.test talk to the runtimes themselves.

Take it down:

  {{.Self}} down{{if ne .Dir .Default}} -dir {{.Dir}}{{end}}
`))

type daemon struct{ Name, Says, Endpoint, Log string }

// welcome prints what is running and how to use it.
func (p place) welcome(out io.Writer, proxy bool) error {
	registry, err := os.ReadFile(p.registryAddr())
	if err != nil {
		return fmt.Errorf("testbed: reading the registry's address: %w", err)
	}
	self := os.Args[0]
	if source, err := build.SourceDir(); err == nil && strings.Contains(self, "/go-build") {
		self = "cd " + source + " && go run ./cmd/testbed" // go run has built this program, and removes it
	}
	screen := struct {
		Dir, Default, Registry, Self string
		Proxy                        bool
		Runtimes                     []daemon
	}{Dir: p.dir, Default: defaultDir, Registry: string(registry), Self: self, Proxy: proxy}
	if proxy {
		screen.Runtimes = append(screen.Runtimes, daemon{
			"criproxy", "in front of both", "unix://" + p.proxySocket(), p.daemon("criproxy").LogFile(),
		})
	}
	for _, instance := range instances {
		rt, err := runtimes.Open(p.instance(instance.name))
		if err != nil {
			return err
		}
		speaks := "speaks runtime.v1"
		if rt.Version == "1.7" {
			speaks += " and runtime.v1alpha2"
		}
		screen.Runtimes = append(screen.Runtimes, daemon{
			instance.name, "containerd " + rt.Version + ", " + speaks, rt.Endpoint(), rt.LogFile(),
		})
	}
	var buf bytes.Buffer
	if err := welcome.Execute(&buf, screen); err != nil {
		return err
	}
	_, err = buf.WriteTo(out)
	return err
}
