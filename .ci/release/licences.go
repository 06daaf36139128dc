package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A module is a Go module that is linked into criproxy.
type module struct {
	Path, Version, Dir string
	Main               bool
}

// linked returns the modules of the packages that are linked into the program in a folder of the root.
func linked(root string, mains ...string) (all []module, err error) {
	for _, main := range mains {
		cmd := exec.Command("go", "list", "-deps", "-json=Module", ".")
		cmd.Dir, cmd.Stderr = filepath.Join(root, main), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("listing what is linked into %s: %w", main, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct{ Module *module }
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if p.Module != nil && !p.Module.Main && !slices.Contains(all, *p.Module) {
				all = append(all, *p.Module)
			}
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

var (
	isText = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)(\.|$)`)
	// allowed are phrases of the licences that CONTRIBUTING.md allows.
	allowed = map[string]*regexp.Regexp{
		"Apache-2.0": regexp.MustCompile(`Apache License\s+Version 2\.0`),
		"MIT":        regexp.MustCompile(`Permission is hereby granted, free of charge`),
		"BSD":        regexp.MustCompile(`Redistribution and use in source and binary forms`),
	}
)

// licences writes the licences and notices of all that is linked into the programs in the given folders of the root.
func licences(out string, flags map[string]string, mains []string) error {
	modules, err := linked(flags["root"], mains...)
	if err != nil {
		return err
	}
	goRoot, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return err
	}
	env := strings.Fields(string(goRoot))
	modules = append([]module{{Path: "Go's standard library", Version: env[1], Dir: env[0]}}, modules...)
	var text bytes.Buffer
	var mistakes error
	fmt.Fprintf(&text, "criproxy itself: the Apache License 2.0. It contains %d other works, under these licences:\n\n", len(modules))
	var all bytes.Buffer
	for _, m := range modules {
		names, files, err := textsOf(m.Dir)
		if err == nil && len(names) == 0 {
			err = errors.New("none of its files holds a licence that CONTRIBUTING.md allows: MIT, BSD or Apache-2.0")
		}
		if err != nil {
			mistakes = errors.Join(mistakes, fmt.Errorf("%s %s: %w", m.Path, m.Version, err))
			continue
		}
		fmt.Fprintf(&text, "  %s %s: %s\n", m.Path, m.Version, strings.Join(names, ", "))
		for _, f := range files {
			data, err := os.ReadFile(filepath.Join(m.Dir, f))
			mistakes = errors.Join(mistakes, err)
			fmt.Fprintf(&all, "\n%s\n%s %s, %s\n%s\n\n%s\n", strings.Repeat("=", 80), m.Path, m.Version, f, strings.Repeat("=", 80), bytes.TrimSpace(data))
		}
	}
	if mistakes != nil {
		return mistakes
	}
	return os.WriteFile(out, append(text.Bytes(), all.Bytes()...), 0o644)
}

// textsOf returns the names of the licences in a folder, and the files that have licences and notices.
func textsOf(dir string) (names, files []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() || !isText.MatchString(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		files = append(files, e.Name())
		for name, phrase := range allowed {
			if phrase.Match(data) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, files, err
}
