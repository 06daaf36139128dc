// Package cri has what the command must know about CRI in addition to criadapter: the names of its
// methods, which of them only read, and which pods and containers messages are about. All of it
// comes from the profile of criadapter.
package cri

import (
	"fmt"
	"path"
	"sync"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

// builtIn is the profile in cri.yaml. Callers must not change it.
var builtIn = sync.OnceValue(func() *director.Profile {
	cfg, err := criadapter.Config(criadapter.Options{})
	if err != nil {
		panic(fmt.Sprintf("the built-in profile: %v", err)) // cannot happen: the tests of criadapter parse it
	}
	return cfg.Profile
})

// Separator returns the text between the name of a runtime and its ids.
func Separator() string { return builtIn().Separator() }

// OnlyReads reports whether a method is one of CRI that changes nothing.
func OnlyReads(method string) bool {
	name, ok := ShortName(method)
	return ok && builtIn().OnlyReads(name)
}

// services are the services of CRI in all versions: "/runtime.v1.RuntimeService".
var services = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, m := range Methods() {
		all[path.Dir(m.Name)] = true
	}
	return all
})

// Methods returns the methods of CRI, in all versions.
func Methods() []*codec.Method { return builtIn().AllVersions(criadapter.Schema()).Methods() }

// ShortName returns the name of a method without its service: "Version" for
// "/runtime.v1.RuntimeService/Version". It reports false if the service does not belong to CRI, in
// any version.
func ShortName(method string) (name string, ok bool) {
	return path.Base(method), services()[path.Dir(method)]
}

// Is reports whether a profile is for CRI.
func Is(p *director.Profile) bool { return p.Versions[0].Package == builtIn().Versions[0].Package }

// Volatile reports whether a field differs each time the same calls run.
func Volatile(fd protoreflect.FieldDescriptor) bool { return builtIn().IsVolatile(fd) }

// ImageNames returns the names under which a runtime may list the image that a client calls name:
// "busybox" is listed as "docker.io/library/busybox:latest". It is the Equivalents of a
// backend.Config.
func ImageNames(name string) []string {
	names := []string{name}
	ref, err := reference.ParseDockerRef(name)
	if err == nil && ref.String() != name {
		names = append(names, ref.String())
	}
	return names
}
