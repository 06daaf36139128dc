package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const source = "https://github.com/criproxy/criproxy"

// A resource is a ResourceDescriptor of in-toto: https://github.com/in-toto/attestation/tree/main/spec/v1.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// A statement is SLSA's provenance of artefacts: https://slsa.dev/spec/v1.0/provenance. It has no times, so that another
// build of the same commit makes the same one.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string         `json:"buildType"`
			ExternalParameters   map[string]any `json:"externalParameters"`
			InternalParameters   map[string]any `json:"internalParameters"`
			ResolvedDependencies []resource     `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// provenance writes how artefacts were made: from which commit, with which Go, of which modules.
func provenance(out string, flags map[string]string, artefacts []string) error {
	var s statement
	s.Type, s.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	slices.Sort(artefacts)
	for _, path := range artefacts {
		sum, err := sha256Of(path)
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: filepath.Base(path), Digest: map[string]string{"sha256": sum}})
	}
	env, err := exec.Command("go", "env", "GOVERSION", "GOFLAGS", "CGO_ENABLED").Output()
	if err != nil {
		return err
	}
	settings := strings.Split(strings.TrimSuffix(string(env), "\n"), "\n")
	b := &s.Predicate.BuildDefinition
	b.BuildType = source + "/blob/main/docs/release.md#how-a-release-is-made"
	b.ExternalParameters = map[string]any{"source": "git+" + source, "commit": flags["commit"], "version": flags["version"], "command": "make release VERSION=" + flags["version"]}
	b.InternalParameters = map[string]any{"goVersion": settings[0], "GOFLAGS": settings[1], "CGO_ENABLED": settings[2], "SOURCE_DATE_EPOCH": os.Getenv("SOURCE_DATE_EPOCH")}
	if !regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`).MatchString(flags["commit"]) {
		return fmt.Errorf("-commit %q: want the whole hash of the commit that is built", flags["commit"])
	}
	b.ResolvedDependencies = []resource{
		{URI: "git+" + source + "@" + flags["commit"], Digest: map[string]string{"gitCommit": flags["commit"]}},
		{URI: "https://go.dev/dl/#" + settings[0], Name: settings[0]},
	}
	modules, err := linked(flags["root"], "cmd/criproxy", "packaging/container")
	if err != nil {
		return err
	}
	sums, err := sumsOf(filepath.Join(flags["root"], "go.sum"), filepath.Join(flags["root"], "packaging/container/go.sum"))
	if err != nil {
		return err
	}
	for _, m := range modules {
		sum, ok := sums[m.Path+" "+m.Version]
		if !ok {
			return fmt.Errorf("%s %s: go.sum does not have it", m.Path, m.Version)
		}
		b.ResolvedDependencies = append(b.ResolvedDependencies, resource{URI: "pkg:golang/" + m.Path + "@" + m.Version, Digest: map[string]string{"dirHash": sum}})
	}
	s.Predicate.RunDetails.Builder.ID = source + "/blob/main/docs/release.md#who-builds"
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(data, '\n'), 0o644)
}

// sumsOf reads the hashes of modules, in hexadecimal as in-toto has them.
func sumsOf(paths ...string) (map[string]string, error) {
	all := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			sum, ok := strings.CutPrefix(fields[2], "h1:")
			raw, err := base64.StdEncoding.DecodeString(sum)
			if !ok || err != nil {
				return nil, fmt.Errorf("%s: %q: not a hash of a module", path, line)
			}
			all[fields[0]+" "+fields[1]] = hex.EncodeToString(raw)
		}
	}
	return all, nil
}

func sha256Of(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}
